# Finds DUCC's Fourier transforms (3-clause BSD licence) in the sources of the package `ducc0`. The sources lie in
# DUCC_ROOT if that is set; otherwise pip downloads them. Sets DUCC_SOURCE to the folder of the sources, or to "" if
# there are none.
set(ducc_version 0.42.0)
find_path(DUCC_SOURCE ducc0/fft/fft.h HINTS "${DUCC_ROOT}" ENV DUCC_ROOT PATH_SUFFIXES src NO_DEFAULT_PATH)
if(NOT DUCC_SOURCE)
  set(folder "${CMAKE_BINARY_DIR}/ducc")
  set(archive "${folder}/ducc0-${ducc_version}.tar.gz")
  if(NOT EXISTS "${archive}")
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -m pip download --quiet --no-deps --no-binary ducc0 --dest "${folder}" ducc0==${ducc_version}
      ERROR_VARIABLE ducc_error
      OUTPUT_QUIET)
  endif()
  if(EXISTS "${archive}")
    file(ARCHIVE_EXTRACT INPUT "${archive}" DESTINATION "${folder}")
    set(DUCC_SOURCE "${folder}/ducc0-${ducc_version}/src" CACHE PATH "" FORCE)
  else()
    message(STATUS "DUCC was not found: ${ducc_error}")
    set(DUCC_SOURCE "")
  endif()
endif()
