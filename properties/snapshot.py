"""Operands as they were before a subject ran: an operator reads them and writes nothing, not even between elements."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reference.inputs import Inputs

OPERANDS = {
    "value": "value",
    "locations": "sampling_locations",
    "weights": "attention_weights",
    "grad_output": "grad_output",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """Copies of the operands' whole memory, byte by byte: padding and NaN count."""

    memory: dict[str, Tensor]

    @classmethod
    def of(cls, inputs: Inputs) -> Snapshot:
        """Copy the memory behind each operand."""
        return cls(memory={field: _bytes(getattr(inputs, field)).clone() for field in OPERANDS})

    def written(self, inputs: Inputs) -> list[str]:
        """Return the operator's names of the operands whose memory is no longer what it was; one synchronisation."""
        changed = [(_bytes(getattr(inputs, field)) != before).any() for field, before in self.memory.items()]
        return [
            name
            for name, is_changed in zip(OPERANDS.values(), torch.stack(changed).tolist(), strict=True)
            if is_changed
        ]


def _bytes(tensor: Tensor) -> Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))
