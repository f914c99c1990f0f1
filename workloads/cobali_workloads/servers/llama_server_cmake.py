"""The CMake project that builds llama-server out of llama.cpp's tree over libraries compiled before."""

CMAKE_LISTS = r"""
cmake_minimum_required(VERSION 3.21)
project(llama_server_over_installed_libraries C CXX)
# TREE: llama.cpp's source tree. LIBRARIES: the folder of libllama and libggml*. LABEL: what --version says.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(PROJECT_SOURCE_DIR "${TREE}")  # the parts below look for headers from the root of their project
foreach(part MAJOR MINOR PATCH)
  file(STRINGS "${TREE}/CMakeLists.txt" line REGEX "^set\\(LLAMA_VERSION_${part} [0-9]+\\)" LIMIT_COUNT 1)
  string(REGEX MATCH "[0-9]+" LLAMA_VERSION_${part} "${line}")
endforeach()
set(LLAMA_VERSION_BASE "${LLAMA_VERSION_MAJOR}.${LLAMA_VERSION_MINOR}.${LLAMA_VERSION_PATCH}")
set(LLAMA_BUILD_NUMBER 0)
set(LLAMA_BUILD_COMMIT "${LABEL}")
set(BUILD_COMPILER "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
set(BUILD_TARGET "${CMAKE_SYSTEM_NAME} ${CMAKE_SYSTEM_PROCESSOR}")

# One binary of our own parts; only libllama and libggml are shared, and they are the installed ones.
set(BUILD_SHARED_LIBS OFF)
set(LLAMA_BUILD_COMMON ON)
set(LLAMA_SUBPROCESS ON)
set(LLAMA_OPENSSL OFF)
set(LLAMA_BUILD_UI OFF)
set(LLAMA_USE_PREBUILT_UI OFF)
set(MTMD_VIDEO OFF CACHE BOOL "" FORCE)
find_package(Threads REQUIRED)
function(llama_add_compile_flags)  # its warnings are for those who change these sources
endfunction()
function(license_add_file)
endfunction()

set(found "")
foreach(name ggml-base ggml-cpu ggml llama)
  set(file "${LIBRARIES}/${CMAKE_SHARED_LIBRARY_PREFIX}${name}${CMAKE_SHARED_LIBRARY_SUFFIX}")
  if(EXISTS "${file}")
    add_library(${name} SHARED IMPORTED GLOBAL)
    set_target_properties(${name} PROPERTIES
      IMPORTED_LOCATION "${file}"
      INTERFACE_INCLUDE_DIRECTORIES "${TREE}/ggml/include;${TREE}/include"
      INTERFACE_COMPILE_DEFINITIONS "GGML_SHARED;GGML_BACKEND_SHARED;LLAMA_SHARED"
      INTERFACE_LINK_LIBRARIES "${found}")
    list(APPEND found ${name})
  endif()
endforeach()
set(CMAKE_BUILD_RPATH "${LIBRARIES}")

foreach(part vendor common tools/mtmd tools/ui tools/server)
  add_subdirectory("${TREE}/${part}" "${CMAKE_BINARY_DIR}/${part}")
endforeach()
"""
