# `cmake --install`: the library, its headers with the generated build_info.hpp, and the package Scape.
include(CMakePackageConfigHelpers)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME core)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Scape)

install(TARGETS scape_core EXPORT ScapeTargets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS scape_mpi_probe RUNTIME DESTINATION ${SCAPE_PROBE_INSTALL_DIR})
install(DIRECTORY include/ ${CMAKE_CURRENT_BINARY_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.hpp)
install(EXPORT ScapeTargets NAMESPACE scape:: DESTINATION ${package_dir})

configure_package_config_file(ScapeConfig.cmake.in ScapeConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/ScapeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ScapeConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/ScapeConfigVersion.cmake
        DESTINATION ${package_dir})

if(SCAPE_NCCL)
  install(FILES ${PROJECT_SOURCE_DIR}/cmake/FindNCCL.cmake DESTINATION ${package_dir})
endif()

if(SCAPE_TESTS)
  add_test(NAME core_package COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR} -DSOURCE=${PROJECT_SOURCE_DIR}
    -DWORK=${CMAKE_CURRENT_BINARY_DIR}/package -DMPIEXEC=${MPIEXEC_EXECUTABLE} -DGENERATOR=${CMAKE_GENERATOR}
    -DCOMPILER=${CMAKE_CXX_COMPILER} -DCONFIG=$<CONFIG> -P ${CMAKE_CURRENT_SOURCE_DIR}/tests/package/test.cmake)
  set_tests_properties(core_package PROPERTIES ENVIRONMENT "${SCAPE_TEST_ENVIRONMENT}" TIMEOUT 300 PROCESSORS 2)
endif()
