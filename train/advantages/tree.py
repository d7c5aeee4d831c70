"""Tree-structured advantages: a token is worth as much as its branch of the tree is better than the others.

Hou et al. 2025, "TreeRL: LLM Reinforcement Learning with On-Policy Tree Search" (arXiv:2506.11902). The rollouts of a
group are a tree: those that begin with the same tokens share the nodes of that beginning, whether sampling branched
there (`branch_every` of the stage `grpo`) or they were equal by chance. A node is the tokens between two branching
points, and V(node) the mean reward of the rollouts through it. Its tokens get

    (V(node) - V(root)) + local * (V(node) - V(parent)),

divided by the square root of the number of rollouts through it, each of which learns from these tokens. So what all
rollouts share is not pushed, and what separates right from wrong is pushed most. Rollouts that share nothing get
1 + local times the unscaled group advantage. Cost: a sort of the rows per position. Left out: values backed up by
anything but the mean.
"""

from __future__ import annotations

import torch

from train.update.terms import Advantage, RewardBatch, group_mean
from ttc.config.values import at_least, finite
from ttc.errors import ConfigError


def tree(*, local: float = 1.0, by_leaves: bool = True) -> Advantage:
    """Global and local advantage of the node that a token belongs to.

    Args:
        local: weight of the difference from the parent node, beside that from the whole group.
        by_leaves: divide by the square root of the number of rollouts through the node, as in the paper.

    Raises:
        ConfigError: local below 0 or endless, or a batch without token ids.
    """
    at_least("advantage tree", 0, local=local)
    finite("advantage tree", local=local)

    def advantage(outcome: RewardBatch) -> torch.Tensor:
        if outcome.tokens is None:
            raise ConfigError("advantage tree needs the token ids of the batch, which this caller does not give")
        _, node = torch.unique(outcome.groups, return_inverse=True)  # (R,)
        root, through = group_mean(outcome.rewards, node, outcome.judged)
        value, parent, columns = root, root, []
        for ids in outcome.tokens.unbind(1):
            _, node = torch.unique(torch.stack([node, ids]), dim=1, return_inverse=True)
            ahead, number = group_mean(outcome.rewards, node, outcome.judged)
            parent = torch.where(number == through, parent, value)  # the same rollouts continue: the same node
            value, through = ahead, number
            worth = (value - root) + local * (value - parent)
            columns.append(worth / number.clamp(min=1).sqrt() if by_leaves else worth)
        result = torch.stack(columns, 1)  # (R, T)
        result = torch.where((result.abs() > 1e-6) & outcome.judged[:, None], result, 0.0)
        return result * outcome.mask

    return advantage
