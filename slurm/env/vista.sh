# shellcheck shell=bash
# TACC Vista: GH200 nodes (partitions gh, gh-dev) with one GPU each, so one rank a node: sbatch -p gh -N 8 -n 8 …; Grace CPU
# nodes in gg. Module names and launcher are from TACC's user guide. Check the versions there with `module spider`: gcc has to be
# 12 or later, and gcc and Open MPI loaded here have to be those of the build. TACC accepts no --mem, --gres or --export.
module load gcc openmpi cuda nvidia_math nccl hdf5 cmake
export launcher=ibrun
