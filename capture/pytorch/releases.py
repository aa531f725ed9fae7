"""What PyTorch 2.1 has under other names than later releases. Everything else that capture uses is in all of them."""

from __future__ import annotations

import torch._utils
import torch.amp
import torch.compiler
import torch.utils._device

__all__ = ["GradScaler", "default_device_is_lowest", "is_compiling", "is_dynamo_compiling", "keys_as_value"]

# One for all devices since 2.3.
GradScaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
# Of torch.compiler since 2.3. The older function is false, and Dynamo, which does not run it, takes it for true.
is_compiling = getattr(torch.compiler, "is_compiling", None) or torch._utils.is_compiling
# Older releases export through Dynamo only: there is no other tracing that is_compiling could mean.
is_dynamo_compiling = getattr(torch.compiler, "is_dynamo_compiling", None) or torch._utils.is_compiling
# The set of dispatch keys as something that compares: a number, in older releases the keys' names, which take longer.
keys_as_value = getattr(torch._C.DispatchKeySet, "raw_repr", None) or torch._C.DispatchKeySet.__repr__
# The default device keeps to the bottom of the stack of modes and looks for itself there. In older releases it is one
# mode among others, and takes off what is on top.
default_device_is_lowest = hasattr(torch.utils._device, "_len_torch_function_stack")
