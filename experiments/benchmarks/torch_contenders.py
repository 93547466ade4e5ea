"""The contenders of the speed benchmark that run on PyTorch: Opacus in its modes, torch.func.

Run by the peers' own interpreter (`requirements-bench.txt`), so nothing of this project but
`contender.py` is imported. The models are the project's, layer by layer under the same names.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import opacus
import torch
from torch import nn

from experiments.benchmarks.contender import Contender, Factory, Job, serve

OPACUS_MODES = ("hooks", "functorch", "ew", "ghost")


class Cnn(nn.Module):
    """`rdpcfl_tff.models.cnn`, channels first."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, padding=2)
        self.conv2 = nn.Conv2d(16, 32, 5, padding=2)
        self.logits = nn.Linear(32 * 7 * 7, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The logits."""
        values = nn.functional.max_pool2d(torch.relu(self.conv1(images)), 2)
        values = nn.functional.max_pool2d(torch.relu(self.conv2(values)), 2)
        return self.logits(values.flatten(1))


class ResNet18(nn.Module):
    """`rdpcfl_tff.models.resnet`, channels first."""

    def __init__(self):
        super().__init__()
        self._convolution("stem", 3, 64, 7, 2)
        self._strides = {}
        channels = 64
        for stage, filters in enumerate((64, 128, 256, 512), start=1):
            for block in (1, 2):
                name, stride = f"stage{stage}_{block}", 2 if stage > 1 and block == 1 else 1
                self._strides[name] = stride
                self._convolution(f"{name}_a", channels, filters, 3, stride)
                self._convolution(f"{name}_b", filters, filters, 3, 1)
                if stride > 1:
                    self._convolution(f"{name}_shortcut", channels, filters, 1, stride)
                channels = filters
        self.logits = nn.Linear(512, 10)

    def _convolution(self, name: str, inputs: int, outputs: int, size: int, stride: int) -> None:
        padding = 1 if size == 3 and stride == 1 else 0
        self.add_module(name, nn.Conv2d(inputs, outputs, size, stride, padding, bias=False))
        self.add_module(f"{name}_norm", nn.GroupNorm(2, outputs))

    def _normed(self, name: str, values: torch.Tensor) -> torch.Tensor:
        return self.get_submodule(f"{name}_norm")(self.get_submodule(name)(values))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The logits."""
        # Keras pads images of an even size unevenly where the stride is 2.
        values = torch.relu(self._normed("stem", nn.functional.pad(images, (2, 3, 2, 3))))
        values = nn.functional.max_pool2d(nn.functional.pad(values, (0, 1, 0, 1)), 3, 2)
        for name, stride in self._strides.items():
            shortcut = self._normed(f"{name}_shortcut", values) if stride > 1 else values
            padded = nn.functional.pad(values, (0, 1, 0, 1)) if stride > 1 else values
            values = torch.relu(self._normed(f"{name}_a", padded))
            values = torch.relu(self._normed(f"{name}_b", values) + shortcut)
        return self.logits(values.mean((2, 3)))


def _torch_name(keras_name: str) -> str:
    layer, kind = keras_name.removesuffix(":0").split("/")
    return f"{layer}.{'weight' if kind in ('kernel', 'gamma') else 'bias'}"


def _torch_layout(weight: np.ndarray, channels_before_flatten: int) -> torch.Tensor:
    """A Keras weight with outputs first, then inputs, then the image's axes."""
    if weight.ndim == 4:
        weight = weight.transpose(3, 2, 0, 1)
    elif weight.ndim == 2:
        positions = weight.shape[0] // channels_before_flatten
        weight = weight.reshape(positions, channels_before_flatten, -1).transpose(2, 1, 0)
        weight = weight.reshape(weight.shape[0], -1)
    return torch.tensor(np.ascontiguousarray(weight))


def _keras_layout(weight: torch.Tensor, channels_before_flatten: int) -> np.ndarray:
    """The inverse of `_torch_layout`."""
    array = weight.detach().numpy()
    if array.ndim == 4:
        array = array.transpose(2, 3, 1, 0)
    elif array.ndim == 2:
        array = array.reshape(array.shape[0], channels_before_flatten, -1).transpose(2, 1, 0)
    return array


class TorchContender(Contender):
    """What both ways of training have in common: the model, the batch, the layout of weights."""

    def __init__(self, job: Job):
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        self._names = [_torch_name(name) for name in job.weights]
        self._channels = {"cnn": 32, "resnet18": 512}[job.model]
        self.model: Any = {"cnn": Cnn, "resnet18": ResNet18}[job.model]()
        weights = [_torch_layout(weight, self._channels) for weight in job.weights.values()]
        self.model.load_state_dict(dict(zip(self._names, weights, strict=True)))
        # Channels first in memory, too: from other strides Opacus 1.6 gets wrong gradients.
        inputs = torch.tensor(job.inputs.transpose(0, 3, 1, 2))
        self.inputs = inputs.clone(memory_format=torch.contiguous_format)
        self.labels = torch.tensor(job.labels.astype(np.int64))

    def parameters(self) -> np.ndarray:
        """See `Contender`."""
        weights = dict(self.model.named_parameters())
        return np.concatenate(
            [_keras_layout(weights[name], self._channels).ravel() for name in self._names]
        )


class Opacus(TorchContender):
    """Opacus' `PrivacyEngine`, with one of its ways to get gradients of single examples."""

    def __init__(self, job: Job, noise_multiplier: float, learning_rate: float, mode: str):
        super().__init__(job)
        batch = torch.utils.data.TensorDataset(self.inputs, self.labels)
        module, self._optimizer, *criterion, _ = opacus.PrivacyEngine().make_private(
            module=self.model,
            optimizer=torch.optim.SGD(self.model.parameters(), learning_rate),
            criterion=nn.CrossEntropyLoss(),
            data_loader=torch.utils.data.DataLoader(batch, batch_size=len(batch)),
            noise_multiplier=noise_multiplier,
            max_grad_norm=job.clip_norm,
            poisson_sampling=False,
            grad_sample_mode=mode,
        )
        self._module = module
        self._criterion = criterion[0] if criterion else nn.CrossEntropyLoss()

    def run(self, steps: int) -> None:
        """See `Contender`."""
        for _ in range(steps):
            self._optimizer.zero_grad()
            self._criterion(self._module(self.inputs), self.labels).backward()
            self._optimizer.step()


class TorchFunc(TorchContender):
    """`torch.func`: vmap of grad, then clip, sum, noise and step by hand."""

    def __init__(self, job: Job, noise_multiplier: float, learning_rate: float):
        super().__init__(job)

        def loss(weights, image, label):
            logits = torch.func.functional_call(self.model, weights, (image[None],))
            return nn.functional.cross_entropy(logits, label[None])

        gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
        weights = {name: weight.detach() for name, weight in self.model.named_parameters()}
        noise_std = job.clip_norm * noise_multiplier

        def step() -> None:
            of_examples = gradients(weights, self.inputs, self.labels)
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in of_examples.values()]).norm(
                dim=0
            )
            factors = (job.clip_norm / norms).clamp(max=1.0)
            for name, weight in weights.items():
                total = torch.tensordot(factors, of_examples[name], dims=1)
                total += noise_std * torch.randn_like(total)
                weight -= learning_rate / len(self.labels) * total

        self._step: Callable[[], None] = step

    def run(self, steps: int) -> None:
        """See `Contender`."""
        with torch.no_grad():
            for _ in range(steps):
                self._step()


FACTORIES: dict[str, Factory] = {
    "torch_func": TorchFunc,
    **{f"opacus_{mode}": functools.partial(Opacus, mode=mode) for mode in OPACUS_MODES},
}

if __name__ == "__main__":
    serve(FACTORIES)
