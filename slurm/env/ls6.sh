# shellcheck shell=bash
# TACC Lonestar6: partitions gpu-a100 (three A100 a node) and gpu-h100 for GPUs, normal and development for CPUs; one rank a
# GPU: sbatch -p gpu-a100 -N 2 -n 6 …. Launcher and MPI (Intel MPI or MVAPICH2, no Open MPI) are from TACC's user guide. Check with
# `module spider` that gcc is 12 or later, and whether there is an nccl module; without one build with -DSCAPE_NCCL=OFF.
module load gcc impi cuda hdf5 cmake
export launcher=ibrun
