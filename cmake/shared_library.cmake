# kvc_shared_library(<target> <objects> <file>)
# The versioned shared library of an object library, to be lib<file>.so. The version of its symbols is named
# after the file: KVCACHE_STORE_0.1. While the project's major version is 0 every minor version may
# break the ABI, so the soname has both.
function(kvc_shared_library target objects file)
    set(KVC_SOVERSION ${PROJECT_VERSION_MAJOR})
    if(PROJECT_VERSION_MAJOR EQUAL 0)
        set(KVC_SOVERSION 0.${PROJECT_VERSION_MINOR})
    endif()
    string(TOUPPER ${file} KVC_MAP_NAME)
    string(REPLACE - _ KVC_MAP_NAME ${KVC_MAP_NAME})
    set(map ${CMAKE_CURRENT_BINARY_DIR}/${file}.map)
    configure_file(${PROJECT_SOURCE_DIR}/cmake/kvcache.map.in ${map} @ONLY)

    add_library(${target} SHARED $<TARGET_OBJECTS:${objects}>)
    set_target_properties(${target} PROPERTIES
        VERSION ${PROJECT_VERSION} SOVERSION ${KVC_SOVERSION}
        LINK_DEPENDS ${map})
    target_link_options(${target} PRIVATE -Wl,--version-script=${map})
    if(NOT KVC_SANITIZE) # the run-time of a sanitizer is linked into the program only
        target_link_options(${target} PRIVATE -Wl,--no-undefined)
    endif()
endfunction()
