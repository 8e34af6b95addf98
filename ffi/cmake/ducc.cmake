# Finds DUCC's Fourier transforms (3-clause BSD licence) in the sources of the package `ducc0`. The sources lie in
# DUCC_ROOT if that is set; otherwise pip downloads them. Sets DUCC_SOURCE to the folder of the sources, or to "" if
# there are none. Then `ducc_problem` says why.
set(ducc_version 0.42.0)
set(ducc_hash 4e11c59b53a43355b053aebb2a62ee16eebeed026575f7d216cf09d437ce52ef)
set(ducc_problem "")
unset(DUCC_SOURCE CACHE)  # the folder of an earlier build may be gone
find_path(DUCC_SOURCE ducc0/fft/fft.h HINTS "${DUCC_ROOT}" ENV DUCC_ROOT PATH_SUFFIXES src NO_DEFAULT_PATH)
if(NOT DUCC_SOURCE)
  set(folder "${CMAKE_BINARY_DIR}/ducc")
  set(archive "${folder}/ducc0-${ducc_version}.tar.gz")
  if(NOT EXISTS "${archive}")
    # pip compares the hash before it opens the archive. To learn the name and version in an archive, pip then asks the
    # archive's build backend. Without build isolation, this is the scikit-build-core that runs the present build. It
    # reads pyproject.toml and runs nothing of the archive, and pip installs nothing for it. Any CMake will do, as it is
    # not run; DUCC's own build asks for a newer one than ours, and pip would give up without it.
    set(any_cmake " --config-settings='cmake.version=>=3'")
    file(WRITE "${folder}/requirements.txt" "ducc0==${ducc_version} --hash=sha256:${ducc_hash}${any_cmake}\n")
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -m pip download --quiet --no-deps --no-binary ducc0 --no-build-isolation
        --require-hashes --dest "${folder}" --requirement "${folder}/requirements.txt"
      ERROR_VARIABLE ducc_error
      OUTPUT_QUIET)
  endif()
  set(found "")
  if(EXISTS "${archive}")
    file(SHA256 "${archive}" found)
  endif()
  if(found STREQUAL ducc_hash)
    file(ARCHIVE_EXTRACT INPUT "${archive}" DESTINATION "${folder}")
    set(DUCC_SOURCE "${folder}/ducc0-${ducc_version}/src")
  else()
    set(DUCC_SOURCE "")
    # The first line in which pip, or the build backend, names an error. It becomes a part of a JSON text.
    string(REGEX MATCH "(ERROR|Error): [^\n]*" reason "${ducc_error}")
    string(REGEX REPLACE "[\\\\\"]" "'" reason "${reason}")
    if(found)
      set(reason "${archive} has the SHA-256 hash ${found} instead of ${ducc_hash}")
    elseif(NOT reason)
      set(reason "pip cannot run")
    endif()
    set(ducc_problem "the sources of DUCC could not be downloaded when decompops was built (${reason}): unpack ducc0-${ducc_version}.tar.gz and set DUCC_ROOT to its folder, then reinstall decompops")
  endif()
endif()
