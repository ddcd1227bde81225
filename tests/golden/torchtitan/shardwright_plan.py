"""llama-3.1-8b on 8 H100-SXM.

Written by shardwright for torchtitan 0.3.0. Start it with run.sh, which lies beside it.
"""

import os

from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer


def plan() -> Trainer.Config:
    spec = model_registry('8B')
    return Trainer.Config(
        model_spec=spec,
        hf_assets_path=os.environ["HF_ASSETS_PATH"],  # folder with the tokenizer
        loss=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec)),
        optimizer=default_adamw(lr=float(os.environ["LEARNING_RATE"])),
        dataloader=HuggingFaceTextDataLoader.Config(dataset=os.environ.get("DATASET", "c4")),
        training=TrainingConfig(
            local_batch_size=32,
            global_batch_size=64,
            seq_len=4096,
            dtype='float32',
            mixed_precision_param='bfloat16',
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(
            data_parallel_replicate_degree=2,
            data_parallel_shard_degree=1,
            fsdp_reshard_after_forward='default',
            tensor_parallel_degree=1,
            enable_sequence_parallel=True,
            context_parallel_degree=1,
            expert_parallel_degree=1,
            pipeline_parallel_degree=4,
            spmd_backend='partial_dtensor',
            pipeline_parallel_schedule='1F1B',
            pipeline_parallel_microbatch_size=1,
            module_fqns_per_model_part=[   [   'tok_embeddings', 'layers.0', 'layers.1', 'layers.2', 'layers.3', 'layers.4', 'layers.5',
        'layers.6'],
    [   'layers.7', 'layers.8', 'layers.9', 'layers.10', 'layers.11', 'layers.12', 'layers.13',
        'layers.14', 'layers.15'],
    [   'layers.16', 'layers.17', 'layers.18', 'layers.19', 'layers.20', 'layers.21', 'layers.22',
        'layers.23', 'layers.24'],
    [   'layers.25', 'layers.26', 'layers.27', 'layers.28', 'layers.29', 'layers.30', 'layers.31',
        'norm', 'lm_head']],
        ),
        compile=CompileConfig(enable=True, enable_async_tensor_parallel=False),
        activation_checkpoint=None,
    )
