"""The family's reward model: a deeper language model of clean work, read as a likelihood.

The teacher's layers below, two more above that begin as the identity, trained on with next-token loss on work whose
wrong results are shown but never learnt. The score of a path is the likelihood of its tokens under this model
(`ttc.scorers.prm`, kind `likelihood`): it falls where the generator made a mistake and this model knows better.

Left out: a two-label classifier on exact step labels, which at this size and budget did not learn to check a sum; the
likelihood ratio against the generator, whose maximum over many candidates prefers odd ones. Cost: `ttc/nano/README.md`.
"""

import torch

from train.base.models import Shape
from train.nano.examples import ExampleMixture
from train.nano.traces import Noise

READING = {"kind": "likelihood", "step_delimiter": "\n\n", "beta": 0.5}
"""What config.json says under `ttc_prm`; see `ttc.scorers.reward_models.embedded.Reading`."""

MIXTURE = ExampleMixture(
    no_think=0.04,
    handover=0.04,
    curriculum=((1.0, (0.04, 0.10, 0.32, 0.0, 0.44, 0.10)),),
    late_cuts=True,
    noise=Noise(slip=0.04, lapse=0.10, recheck=0.25, again=0.3),
)


def deepen(network: torch.nn.Module, teacher: dict[str, torch.Tensor], shape: Shape) -> None:
    """Put the teacher's weights below and let the layers above it begin as the identity, in place.

    Args:
        network: a fresh model of `model.PRM`.
        teacher: the state of the teacher, fp32.
        shape: the teacher's shape.
    """
    unknown = network.load_state_dict(teacher, strict=False).unexpected_keys
    if unknown:
        raise ValueError(f"the teacher has weights that the reward model lacks: {unknown}")
    for name, parameter in network.named_parameters():
        parts = name.split(".")
        above = "layers" in parts and int(parts[parts.index("layers") + 1]) >= shape.layers
        if above and parts[-2] in ("o_proj", "down_proj"):
            torch.nn.init.zeros_(parameter)
