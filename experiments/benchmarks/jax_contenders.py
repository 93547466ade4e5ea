"""The contender of the speed benchmark that runs on JAX: vmap of grad, compiled by XLA.

Run by the peers' own interpreter (`requirements-bench.txt`), so nothing of this project but
`contender.py` is imported. The models are the project's, layer by layer under the same names.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.contender import Contender, Factory, Job, flat, serve

Weights = dict[str, jax.Array]


def _convolution(weights: Weights, layer: str, images: jax.Array, stride: int = 1) -> jax.Array:
    return jax.lax.conv_general_dilated(
        images,
        weights[f"{layer}/kernel:0"],
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def _max_pool(images: jax.Array, size: int, padding: str) -> jax.Array:
    window, strides = (1, size, size, 1), (1, 2, 2, 1)
    return jax.lax.reduce_window(images, -jnp.inf, jax.lax.max, window, strides, padding)


def cnn(weights: Weights, images: jax.Array) -> jax.Array:
    """The logits of `rdpcfl_tff.models.cnn`."""
    values = images
    for layer in ("conv1", "conv2"):
        values = _convolution(weights, layer, values) + weights[f"{layer}/bias:0"]
        values = _max_pool(jax.nn.relu(values), 2, "VALID")
    values = values.reshape(len(values), -1)
    return values @ weights["logits/kernel:0"] + weights["logits/bias:0"]


def resnet18(weights: Weights, images: jax.Array) -> jax.Array:
    """The logits of `rdpcfl_tff.models.resnet`."""

    def normed(layer: str, values: jax.Array, stride: int = 1) -> jax.Array:
        values = _convolution(weights, layer, values, stride)
        groups = values.reshape(*values.shape[:3], 2, -1)
        mean = groups.mean((1, 2, 4), keepdims=True)
        variance = groups.var((1, 2, 4), keepdims=True)
        standardised = ((groups - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(values.shape)
        gamma, beta = weights[f"{layer}_norm/gamma:0"], weights[f"{layer}_norm/beta:0"]
        return standardised * gamma + beta

    values = _max_pool(jax.nn.relu(normed("stem", images, 2)), 3, "SAME")
    for stage in (1, 2, 3, 4):
        for block in (1, 2):
            name, stride = f"stage{stage}_{block}", 2 if stage > 1 and block == 1 else 1
            shortcut = normed(f"{name}_shortcut", values, stride) if stride > 1 else values
            values = jax.nn.relu(normed(f"{name}_a", values, stride))
            values = jax.nn.relu(normed(f"{name}_b", values) + shortcut)
    return values.mean((1, 2)) @ weights["logits/kernel:0"] + weights["logits/bias:0"]


class VmapGrad(Contender):
    """The step as jax.vmap(jax.grad) gives it."""

    def __init__(self, job: Job, noise_multiplier: float, learning_rate: float):
        model = {"cnn": cnn, "resnet18": resnet18}[job.model]
        inputs, labels = jnp.asarray(job.inputs), jnp.asarray(job.labels)
        noise_std = job.clip_norm * noise_multiplier

        def loss(weights: Weights, image: jax.Array, label: jax.Array) -> jax.Array:
            return -jax.nn.log_softmax(model(weights, image[None]))[0, label]

        def clipped_gradient(weights: Weights, image: jax.Array, label: jax.Array) -> Weights:
            gradient = jax.grad(loss)(weights, image, label)
            norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in gradient.values()))
            return jax.tree.map(lambda g: g * jnp.minimum(1.0, job.clip_norm / norm), gradient)

        # Weights are handed over, not copied, and the batch is data: XLA must not fold it.
        @functools.partial(jax.jit, donate_argnums=0)
        def step(weights: Weights, key: jax.Array, images: jax.Array, labels: jax.Array) -> Weights:
            gradients = jax.vmap(clipped_gradient, (None, 0, 0))(weights, images, labels)
            keys = jax.random.split(key, len(weights))
            noise = {
                name: noise_std * jax.random.normal(key, weights[name].shape)
                for key, name in zip(keys, weights, strict=True)
            }
            return {
                name: weights[name]
                - learning_rate / len(labels) * (gradients[name].sum(0) + noise[name])
                for name in weights
            }

        self._weights = {name: jnp.array(weight) for name, weight in job.weights.items()}
        self._names = list(job.weights)
        self._key = jax.random.key(0)
        self._step = lambda weights, key: step(weights, key, inputs, labels)

    def run(self, steps: int) -> None:
        """See `Contender`."""
        for _ in range(steps):
            self._key, noise_key = jax.random.split(self._key)
            self._weights = self._step(self._weights, noise_key)
        jax.block_until_ready(self._weights)

    def parameters(self) -> np.ndarray:
        """See `Contender`."""
        return flat({name: np.asarray(self._weights[name]) for name in self._names})


FACTORIES: dict[str, Factory] = {"jax_vmap": VmapGrad}

if __name__ == "__main__":
    serve(FACTORIES)
