# find_package(Scape) builds the sources. The test names them with FETCHCONTENT_SOURCE_DIR_SCAPE; a project of its own would
# name a GIT_REPOSITORY and a GIT_TAG here.
include(FetchContent)
FetchContent_Declare(Scape OVERRIDE_FIND_PACKAGE)
