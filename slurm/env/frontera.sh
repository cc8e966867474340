# shellcheck shell=bash
# TACC Frontera: CPU nodes of 56 cores (partitions small for 1-2 nodes, normal, development), and rtx with four Quadro RTX 5000
# a node (compute capability 7.5: build with -DCMAKE_CUDA_ARCHITECTURES=75). Launcher and partitions are from TACC's user guide.
# Check with `module spider` that gcc is 12 or later, which MPI goes with it, and for rtx which cuda; load what you built with.
module load gcc impi hdf5 cmake
export launcher=ibrun
