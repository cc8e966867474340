# The test core_package: installs the core, then makes the consumer project and runs it on two ranks, once with the installed
# library and once with the sources in its place. install.cmake passes
#   BUILD, SOURCE   build folder and root of this project          WORK             scratch folder
#   MPIEXEC         MPI's launcher                                 GENERATOR, COMPILER, CONFIG   as of this build
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(make_and_run folder)
  run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${folder} -G ${GENERATOR}
      -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=${CONFIG} ${ARGN})
  run(${CMAKE_COMMAND} --build ${folder} -j 2)
  run(${MPIEXEC} -n 2 ${folder}/least_squares)
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --component core --prefix ${WORK}/prefix)
if(NOT EXISTS ${WORK}/prefix/libexec/scape/scape_mpi_probe)
  message(FATAL_ERROR "scape_mpi_probe is not installed")
endif()
make_and_run(${WORK}/installed -DCMAKE_PREFIX_PATH=${WORK}/prefix)
make_and_run(${WORK}/from_source -DCMAKE_PROJECT_LeastSquares_INCLUDE=${CMAKE_CURRENT_LIST_DIR}/from_source.cmake
             -DFETCHCONTENT_SOURCE_DIR_SCAPE=${SOURCE})
