"""A card that is not there: it knows shapes, types and places, but no values.

It refuses what a GPU would: tensors of two devices in one operation, and a value that is looked at. It notes
what cannot be recorded: copies from one device to the other.
"""

import contextlib
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from torch.utils.weak import WeakIdKeyDictionary

import fedsaddle as fs
from fedsaddle.data import federated
from fedsaddle.engine.phase import exchange

if torch.cuda.is_available():
    # PyTorch's gradients know one accelerator a process: from here on every gradient on CUDA would fail.
    pytest.skip("a pretended card would take the place of the real one", allow_module_level=True)
_setup_privateuseone_for_python_backend("card")
CARD = torch.device("card", 0)
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class Card(TorchDispatchMode):
    """What is computed inside knows no values.

    Copies from one device to the other are noted, but for those of constants: a recording makes them once.
    """

    def __init__(self, without_values):
        super().__init__()
        self.without_values, self.copies = without_values, []
        self.constants = WeakIdKeyDictionary()

    def __torch_dispatch__(self, called, types, args=(), kwargs=None):
        args, kwargs = self.known((args, kwargs or {}))
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        found = called(*args, **kwargs)
        if all(leaf in self.constants for leaf in given):
            self.constants.update(
                (leaf, True) for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)
            )
        elif called in COPIES and given[-1].device != found.device:
            self.copies.append(f"{list(found.shape)} from {given[-1].device} to {found.device}")
        return found

    def known(self, values):
        """The same without values: what has any was there before."""

        def one(value):
            if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
                return value
            found = self.without_values.from_tensor(value)
            self.constants[found] = True
            return found

        return tree_map(one, values)

    def onto(self, values):
        """Inputs, on the card."""

        def one(value):
            if not isinstance(value, torch.Tensor):
                return value
            found = value.to(CARD)
            del self.constants[found]
            return found

        return tree_map(one, self.known(values))


def copied(federation, device):
    """What `Federation.to` gives, without looking at what it has copied."""
    if federation.sizes.device == CARD:
        return federation
    there = object.__new__(type(federation))
    tables = {name: getattr(federation, name) for name in ("rows", "sizes", "own", "order", "offsets")}
    moved = tree_map(lambda table: table.to(device) if isinstance(table, torch.Tensor) else table, tables)
    vars(there).update(vars(federation) | moved)
    return there


@contextlib.contextmanager
def card():
    """Inside, there is a card."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fs.problem.Federation, "to", copied)
        for rows in (federated.CHUNK, federated.FULL_CHUNK):
            patch.setitem(rows, "card", rows["cuda"])
        with FakeTensorMode(allow_non_fake_inputs=True) as without_values, Card(without_values) as there:
            yield there


class OnCard(fs.Vectorised):
    """Every phase is computed on the card first, and then on the CPU."""

    def __init__(self):
        super().__init__(compiled=False)
        self.phases = 0

    def run(self, study, number, extent, inputs):
        self.limit(study.device)
        with card() as there:
            self._needs = {(number, extent.rows): (1, 0)}  # measured before a phase is recorded
            own = replace(study, device=CARD, hyper=there.onto(study.hyper))
            found = exchange(own, number, extent, there.onto(inputs), self.answers)
            assert {leaf.device for leaf in tree_leaves(found)} == {CARD}
            assert there.copies == []
        self._needs, self.phases = {}, self.phases + 1
        return exchange(study, number, extent, inputs, self.answers)
