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
make_environment bridge "${PINNED}" transformers==5.23 omegaconf 'hydra-core<1.4' einops six pillow triton tensorboard
if [[ ! -e "${FOLDER}/bridge/.made" ]]; then # the wheels ask for Python 3.12, but their configuration runs on 3.11 too
    "${FOLDER}/bridge/bin/python" -m pip download --quiet --no-deps --python-version 3.12 --only-binary=:all: \
        --platform manylinux_2_28_x86_64 --dest "${FOLDER}/wheels" megatron-core==0.19.2 megatron-bridge==0.6.2
    SITE="$("${FOLDER}/bridge/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    for wheel in "${FOLDER}"/wheels/megatron_*.whl; do
        "${FOLDER}/bridge/bin/python" -m zipfile --extract "${wheel}" "${SITE}"
    done
fi
make_environment skypilot skypilot==0.14.1
touch "${FOLDER}"/{bridge,torchtitan,accelerate,deepspeed,skypilot}/.made

cd "${ROOT}"
SHARDWRIGHT_TARGETS="${FOLDER}" "${TEST_PYTHON:-python3}" -m pytest tests/targets/test_targets.py
