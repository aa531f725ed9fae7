"""Models and functions of a program on torch-on-MindSpore, made of whichever torch it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mindspore
import numpy as np

__all__ = ["gradients", "models"]


def models(torch: Any) -> SimpleNamespace:
    """Classes of modules."""
    nn = torch.nn

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        """The network of s_msa.py, with which msprobe made mindtorch_8.1.0_mix_tensor."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 3, padding=1)
            self.fc = nn.Sequential(nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 3))

        def forward(self, x: Any, scale: float = 1.0) -> Any:
            h = torch.nn.functional.relu(self.conv(x))
            h = torch.add(h, 1.0)
            h = torch.flatten(h, 1)
            return self.fc(h) * scale

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        """Three modules that share an input."""

        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            weights = torch.softmax(torch.matmul(self.q(x), self.k(x).t()), -1)
            return torch.matmul(weights, self.v(x))

    class Parts(nn.Module):  # type: ignore[misc, name-defined]
        """Outputs in a dict, an input by keyword."""

        def forward(self, x: Any, extra: Any = None) -> Any:
            return {"list": [x + 1, "text"], "product": x * 3, "none": extra["none"]}

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        """Residuals, a module that returns its input, structured outputs."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.norm, self.attention = nn.Embedding(5, 4), nn.LayerNorm(4), Attention()
            self.nothing, self.parts = nn.Dropout(), Parts()

        def forward(self, x: Any, index: Any) -> Any:
            x = x + self.embedding(index)
            h = self.nothing(x + self.attention(self.norm(x)))
            parts = self.parts(h, extra={"none": None, "tensor": h})
            return parts["list"][0] * 2 + parts["product"]

    class Failing(nn.Module):  # type: ignore[misc, name-defined]
        """Raises."""

        def forward(self, x: Any) -> Any:
            raise ValueError("of the program")

    class Catching(nn.Module):  # type: ignore[misc, name-defined]
        """Goes on after a module that raised."""

        def __init__(self) -> None:
            super().__init__()
            self.failing, self.fc = Failing(), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            try:
                self.failing(x)
            except ValueError:
                return self.fc(x)
            raise AssertionError

    class Twice(nn.Module):  # type: ignore[misc, name-defined]
        """One parameter, used by two modules."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight

        def forward(self, x: Any) -> Any:
            return self.second(self.first(x))

    return SimpleNamespace(Net=Net, Block=Block, Catching=Catching, Twice=Twice)


def gradients(run: Any, x: Any, model: Any) -> tuple[Any, list[Any]]:
    """Gradients of the input and of the parameters as MindSpore returns them, as arrays."""
    _, (of_input, of_parameters) = mindspore.value_and_grad(run, 0, list(model.parameters()))(x)
    return np.array(of_input.asnumpy()), [np.array(gradient.asnumpy()) for gradient in of_parameters]
