#!/usr/bin/env bash
# Makes a virtual environment with Megatron-LM's own argument parser, and runs the exports through it. No GPU is needed.
#
#   tests/targets/megatron_venv.sh [FOLDER]        FOLDER: where the environment goes (default .venv-megatron)
#
# PYTHON names the interpreter (3.11 or newer, default python3). The release's wheel asks for Python 3.12, but its
# argument parser runs on 3.11 too, so the wheel is unpacked rather than installed. TORCH may name another build of
# PyTorch, as pip does (for instance "torch==2.13.0+cpu").
set -euo pipefail

VERSION=0.19.2
FOLDER="${1:-.venv-megatron}"
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"

"${PYTHON:-python3}" -m venv "${FOLDER}"
FOLDER="$(cd "${FOLDER}" && pwd)"
PINNED="$(grep -o 'torch==[0-9.]*' "${ROOT}/constraints.txt")"
"${FOLDER}/bin/python" -m pip install --quiet "${TORCH:-${PINNED}}" triton numpy packaging einops pyyaml tqdm \
    typing-extensions
"${FOLDER}/bin/python" -m pip download --quiet --no-deps --python-version 3.12 --only-binary=:all: \
    --platform manylinux_2_28_x86_64 --dest "${FOLDER}/wheels" "megatron-core==${VERSION}"
# The source of Transformer Engine, to look up what it refuses; it is not importable without CUDA, and stays aside.
"${FOLDER}/bin/python" -m pip download --quiet --no-deps --only-binary=:all: --dest "${FOLDER}/wheels" \
    transformer_engine==2.8.0
"${FOLDER}/bin/python" -m zipfile --extract "${FOLDER}"/wheels/transformer_engine-*.whl "${FOLDER}/sources"
"${FOLDER}/bin/python" -m zipfile --extract "${FOLDER}"/wheels/megatron_core-*.whl "${FOLDER}/sources"
SITE="$("${FOLDER}/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
"${FOLDER}/bin/python" -m zipfile --extract "${FOLDER}"/wheels/megatron_core-*.whl "${SITE}"

cd "${ROOT}"
SHARDWRIGHT_MEGATRON_PYTHON="${FOLDER}/bin/python" "${TEST_PYTHON:-python3}" -m pytest tests/targets/test_megatron_parser.py tests/targets/test_varied_exports.py
