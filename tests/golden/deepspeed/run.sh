#!/usr/bin/env bash
# shardwright evaluate --launch run.sh --model llama-3.1-8b --seq-len 4096
# cluster: {"pools": [{"gpu": {"name": "H100-SXM", "vendor": "nvidia", "architecture": "Hopper", "compute_capability": "9.0", "multiprocessors": 132, "clock_hertz": 1830000000.0, "peak_flops": [["fp32", 67000000000000.0], ["tf32", 494000000000000.0], ["fp16", 989000000000000.0], ["bf16", 989000000000000.0], ["fp8", 1979000000000000.0]], "memory_bytes": 80000000000.0, "memory_bytes_per_second": 3350000000000.0, "l2_bytes": 50000000.0, "link": "NVLink4", "link_bytes_per_second": 450000000000.0, "link_domain": 8, "pcie_bytes_per_second": 64000000000.0, "tdp_watts": 700.0, "source": "test", "date": "2026-11"}, "nodes": 1, "gpus_per_node": 8, "memory_bytes": 80000000000.0, "domain_gpus": 8, "intra_bytes_per_second": 450000000000.0, "intra_latency_seconds": 2e-06, "inter_bytes_per_second": 400000000000.0, "inter_latency_seconds": 5e-06, "host_memory_bytes": 2000000000000.0, "host_memory_bytes_per_second": 400000000000.0, "price": {"on_demand_per_hour": 98.32, "spot_per_hour": null, "source": "test", "date": "2026-11", "seller": ""}, "spot": false, "site": "", "rack_nodes": 0, "rack_bytes_per_second": 0.0, "assumed": []}], "site_links": [], "name": "test"}
# Written by shardwright for DeepSpeed 0.19.8.
set -euo pipefail
: "${TRAIN_SCRIPT:?your training script; it reads training_arguments.json, which names ds_config.json}"
cd "$(dirname "${BASH_SOURCE[0]}")"
exec torchrun --nnodes 1 --nproc-per-node 8 \
    "${TRAIN_SCRIPT}" training_arguments.json "$@"
