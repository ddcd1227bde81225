#!/usr/bin/env bash
# Downloads the packages of the trainers whose files are read, at pinned versions, and lists the keys of their
# configurations (tests/importers/schemas). Nothing of them is installed or run.
#
#   tests/targets/schemas.sh [FOLDER]        FOLDER: where the packages go (default .schemas)
set -euo pipefail

FOLDER="${1:-.schemas}"
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
PYTHON="${PYTHON:-python3}"
mkdir -p "${FOLDER}/files"
FOLDER="$(cd "${FOLDER}" && pwd)"

unpacked() { # FOLDER PACKAGE==VERSION
    [[ -e "${FOLDER}/$1" ]] && return
    "${PYTHON}" -m pip download --quiet --disable-pip-version-check --no-deps --python-version 3.12 \
        --only-binary=:all: --platform manylinux_2_28_x86_64 --dest "${FOLDER}/files/$1" "$2"
    "${PYTHON}" -m zipfile --extract "${FOLDER}/files/$1"/*.whl "${FOLDER}/$1"
}

unpacked transformers transformers==5.23.0
unpacked trl trl==1.16.0
unpacked llamafactory llamafactory==0.9.5
unpacked axolotl axolotl==0.19.0
unpacked accelerate accelerate==1.15.0
unpacked torchtitan022 torchtitan==0.2.2
unpacked torchtitan torchtitan==0.3.0
unpacked megatron_bridge megatron-bridge==0.6.2
unpacked megatron_core megatron-core==0.19.2
unpacked nemo_toolkit nemo-toolkit==2.4.1
unpacked nemo_toolkit1 nemo-toolkit==1.23.0
unpacked llm_foundry llm-foundry==0.22.0
unpacked mosaicml mosaicml==0.32.1
unpacked torchtune torchtune==0.6.1
if [[ ! -e "${FOLDER}/deepspeed" ]]; then # there is no wheel of it
    DS_BUILD_OPS=0 "${PYTHON}" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary=:all: \
        --no-build-isolation --dest "${FOLDER}/files/deepspeed" deepspeed==0.19.8
    mkdir -p "${FOLDER}/deepspeed"
    tar --extract --gzip --strip-components=1 --directory "${FOLDER}/deepspeed" --file "${FOLDER}"/files/deepspeed/*.tar.gz
fi

cd "${ROOT}"
"${TEST_PYTHON:-python3}" -m tests.targets.schemas "${FOLDER}"
"${TEST_PYTHON:-python3}" -m tests.targets.recipes "${FOLDER}"
