# What every target and every test of the suite shares.

# Compiler settings. Floating-point contraction is off and trapping maths is not assumed: results do not depend on whether
# the processor has fused multiply-add, and loops vectorise.
function(scape_target name)
  target_compile_features(${name} PUBLIC cxx_std_20)
  set(cxx $<COMPILE_LANGUAGE:CXX>)
  target_compile_options(${name} PRIVATE
    "$<${cxx}:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wno-sign-conversion>"
    "$<$<AND:${cxx},$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>"  # false alarms, GCC bug 105329
    "$<${cxx}:-ffp-contract=off;-fno-math-errno;-fno-trapping-math>"
    "$<$<AND:${cxx},$<CONFIG:Release>>:-O3>")
  if(SCAPE_WERROR)
    target_compile_options(${name} PRIVATE $<${cxx}:-Werror>)
  endif()
  if(SCAPE_NATIVE)
    target_compile_options(${name} PRIVATE $<${cxx}:-march=native>)
  endif()
  if(SCAPE_SANITIZE)
    target_compile_options(${name} PRIVATE "$<${cxx}:-fsanitize=${SCAPE_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer>"
      "$<$<AND:${cxx},$<CXX_COMPILER_ID:GNU>>:-Wno-maybe-uninitialized>")  # false alarms in <regex>, GCC bug 105562
    target_link_options(${name} PUBLIC -fsanitize=${SCAPE_SANITIZE})
  endif()
endfunction()

# Environment that lets ranks outnumber cores and run as root, so that multi-rank tests run everywhere instead of being skipped.
set(SCAPE_TEST_ENVIRONMENT
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_base_warn_component_unused=0 OMPI_MCA_btl=self,vader,tcp
  OMPI_MCA_hwloc_base_binding_policy=none OMP_NUM_THREADS=1
  "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/cmake/lsan.supp" "ASAN_OPTIONS=detect_leaks=0")

# One ctest entry that runs a program as it is. Extra arguments go to the program. Tests of every folder find core/tests/support.
function(scape_test name target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/core/tests/support)
  add_test(NAME ${name} COMMAND ${target} ${ARGN})
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "${SCAPE_TEST_ENVIRONMENT}" TIMEOUT 600)
endfunction()

# One ctest entry per rank count: `name_N` runs the program on N MPI ranks.
function(scape_mpi_test name target)
  cmake_parse_arguments(ARG "" "" "RANKS;ARGS" ${ARGN})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/core/tests/support)
  foreach(ranks IN LISTS ARG_RANKS)
    add_test(NAME ${name}_${ranks} COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} $<TARGET_FILE:${target}> ${ARG_ARGS})
    set_tests_properties(${name}_${ranks} PROPERTIES ENVIRONMENT "${SCAPE_TEST_ENVIRONMENT}" TIMEOUT 600 PROCESSORS 2)
  endforeach()
endfunction()
