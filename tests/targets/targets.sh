#!/usr/bin/env bash
# Makes a virtual environment for each target that plans are exported to, with its own code at a pinned version, and puts
# the exports through it. No GPU is needed.
#
#   tests/targets/targets.sh [FOLDER]        FOLDER: where the environments go (default .venv-targets)
#
# PYTHON names the interpreter (3.11 or newer, default python3), TORCH another build of PyTorch, as pip does (for
# instance "torch==2.13.0+cpu").
set -euo pipefail

FOLDER="${1:-.venv-targets}"
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
PINNED="${TORCH:-$(grep -rhoE 'torch==[0-9.]+' "${ROOT}"/pyproject.toml "${ROOT}"/constraints*.txt 2>/dev/null | head -n1)}"
mkdir -p "${FOLDER}"
FOLDER="$(cd "${FOLDER}" && pwd)"

make_environment() { # NAME PACKAGES…
    local folder="${FOLDER}/$1"
    shift
    [[ -e "${folder}/.made" ]] && return
    "${PYTHON:-python3}" -m venv "${folder}"
    "${folder}/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

make_environment torchtitan "${PINNED}" torchdata torch_checkpointing 'datasets<4.8' tokenizers tyro tensorboard einops \
    pillow spmd_types==0.2.3 triton
# Its own requirements ask for nightly builds, which reading a configuration does not need.
[[ -e "${FOLDER}/torchtitan/.made" ]] || "${FOLDER}/torchtitan/bin/python" -m pip install --quiet --no-deps torchtitan==0.3.0
make_environment accelerate "${PINNED}" accelerate==1.15.0 transformers==5.23
DS_BUILD_OPS=0 make_environment deepspeed "${PINNED}" deepspeed==0.19.8
make_environment skypilot skypilot==0.14.1
touch "${FOLDER}"/{torchtitan,accelerate,deepspeed,skypilot}/.made

cd "${ROOT}"
SHARDWRIGHT_TARGETS="${FOLDER}" "${TEST_PYTHON:-python3}" -m pytest tests/targets/test_targets.py
