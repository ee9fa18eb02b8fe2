#!/bin/sh
# Whether the NVIDIA driver runs CUDA 13, which torch and vLLM are built for.
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
[ "${driver%%.*}" -ge 580 ] 2>/dev/null && exit
echo "CUDA 13 needs the NVIDIA driver 580 or later, and this machine has ${driver:-none}:" >&2
echo "install one, or 'make install GPU=' to use CPUs" >&2
exit 1
