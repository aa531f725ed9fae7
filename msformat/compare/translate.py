"""Names of one thing in several frameworks and wrappers: what is left when spelling is taken away."""

from __future__ import annotations

from msformat.names import OpName

__all__ = ["bare_operation", "class_alias", "parameter_alias", "without_wrappers"]

# What DistributedDataParallel, FSDP, torch.compile, checkpointing, and MindSpore's training cells put into a path.
_WRAPPERS = frozenset(
    ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "network",
     "_backbone", "_network")
)  # fmt: skip

# MindSpore -> PyTorch, where the names of classes differ (documentation of MindSpore 2.x, "API mapping").
_CLASSES = {
    "Dense": "Linear",
    "BatchNorm1D": "BatchNorm1d",
    "BatchNorm2D": "BatchNorm2d",
    "BatchNorm3D": "BatchNorm3d",
    "Conv1DTranspose": "ConvTranspose1d",
    "Conv2DTranspose": "ConvTranspose2d",
    "Conv3DTranspose": "ConvTranspose3d",
    "Conv1D": "Conv1d",
    "Conv2D": "Conv2d",
    "Conv3D": "Conv3d",
    "SequentialCell": "Sequential",
    "CellList": "ModuleList",
    "CellDict": "ModuleDict",
    "EmbeddingLookup": "Embedding",
    "SoftmaxCrossEntropyWithLogits": "CrossEntropyLoss",
}
_PARAMETERS = {
    "gamma": "weight",
    "beta": "bias",
    "embedding_table": "weight",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
# Names of one operation in torch, mint, ops and primitives, once prefix, case, underscores and dunders are gone.
_OPERATIONS = {
    "dense": "linear",
    "bidense": "bilinear",
    "asnumpy": "numpy",
    "gatherelements": "gather",
    "gatherd": "gather",
    "equal": "eq",
    "notequal": "ne",
    "greater": "gt",
    "greaterequal": "ge",
    "less": "lt",
    "lessequal": "le",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "realdiv": "div",
    "divide": "div",
    "truediv": "div",
    "truedivide": "div",
    "floordivide": "floordiv",
    "multiply": "mul",
    "subtract": "sub",
    "negative": "neg",
    "absolute": "abs",
    "concat": "cat",
    "concatenate": "cat",
    "reducesum": "sum",
    "reducemean": "mean",
    "reducemax": "amax",
    "reducemin": "amin",
    "broadcastto": "expand",
    "expanddims": "unsqueeze",
    "batchmatmul": "matmul",
    "bmm": "matmul",
    "mm": "matmul",
    "softmaxcrossentropywithlogits": "crossentropy",
    "splittensor": "split",
}


def without_wrappers(path: str) -> str:
    """A module path without the parts that wrappers put in."""
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)


def class_alias(name: str | None) -> str:
    """PyTorch's name of a class."""
    return _CLASSES.get(name or "", name or "")


def parameter_alias(path: str) -> str:
    """PyTorch's name of a parameter."""
    head, dot, last = path.rpartition(".")
    return head + dot + _PARAMETERS.get(last, last)


def bare_operation(name: OpName) -> str:
    """What an API does, whatever the framework and the form of the call: ``Tensor.__iadd__`` and ``Mint.add`` agree."""
    last = (name.class_name or name.path).rpartition(".")[2]
    word = last.strip("_").replace("_", "").lower()
    if last.startswith("__") and word[:1] in ("i", "r") and word[1:] in _DUNDERS:
        word = word[1:]
    return _OPERATIONS.get(word, word)


# Operators with an in-place and a reflected form.
_DUNDERS = frozenset(
    ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
)
