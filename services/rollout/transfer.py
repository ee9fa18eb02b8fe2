"""The transfer of new weights: vLLM's workers read them from a folder in memory.

vLLM imports this file into each of its workers before it asks for the transfer engine.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from safetensors import safe_open
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from services.chassis.parent import die_with_parent

BACKEND = "weir"

# A process of the engine would otherwise outlive a killed service, and keep its memory.
parent = multiprocessing.parent_process()
if parent is not None:
    die_with_parent(parent.pid)


@dataclass
class Nothing(WeightTransferInitInfo):
    """There is nothing to set up."""


@dataclass
class Folder(WeightTransferUpdateInfo):
    """The folder of the weights, as safetensors."""

    path: str


class FolderTransfer(WeightTransferEngine[Nothing, Folder]):
    """Replaces all weights with those of a folder of the same architecture."""

    init_info_cls = Nothing
    update_info_cls = Folder

    def init_transfer_engine(self, init_info: Nothing) -> None:
        """Do nothing: each update names its folder."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, str]) -> None:
        """Load the folder. vLLM's own method would wait for an accelerator, also on a CPU."""
        try:
            self.receive_weights(self.parse_update_info(update_info))
        except BaseException:
            # The tensors that a layer has loaded so far would count for the next update.
            finalize_layerwise_reload(self.model, self.model_config)
            raise

    def receive_weights(self, update_info: Folder) -> None:
        cast(Any, self.model).load_weights(_tensors(Path(update_info.path)))

    def finish_weight_update(self) -> None:
        """Finish the layers.

        On a CPU each layer multiplies by a packed copy of its weight. vLLM packs loaded layers
        again. A tied ``lm_head`` is not loaded, and would keep the old embedding.
        """
        finalize_layerwise_reload(self.model, self.model_config)
        for module in self.model.modules():
            if hasattr(module, "cpu_linear"):
                dispatch_cpu_unquantized_gemm(module, remove_weight=False)

    def shutdown(self) -> None:
        """Do nothing: no file stays open."""


class Worker:
    """Methods that vLLM adds to its workers."""

    def use_ids(self, num_ids: int) -> None:
        """Exclude the rows of the head from ``num_ids`` on, which have no token, from sampling."""
        model = cast(Any, self).model_runner.get_model()
        compute = model.compute_logits

        def compute_used(*args: Any, **options: Any) -> Tensor | None:
            logits = compute(*args, **options)
            # A rank that samples nothing has no logits.
            if logits is not None:
                logits[..., num_ids:] = -math.inf
            return logits

        model.compute_logits = compute_used


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (a file is no mapping)
                yield name, file.get_tensor(name)


WeightTransferEngineFactory.register_engine(BACKEND, FolderTransfer)
