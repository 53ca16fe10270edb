# Headers, libraries, the pkg-config file and the CMake package. The program and its man pages are
# installed where they are built. Nothing installed names its prefix, so the tree can be moved.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvcache)

set(libraries kvcache_static)
if(KVC_BUILD_SHARED)
    list(APPEND libraries kvcache)
endif()

set(without_store)
if(NOT KVC_STORE)
    set(without_store PATTERN "safetensors.h" EXCLUDE PATTERN "snapshot.h" EXCLUDE
        PATTERN "block_key.h" EXCLUDE PATTERN "spill.h" EXCLUDE PATTERN "tier*.h" EXCLUDE)
elseif(NOT KVC_REDIS)
    set(without_store PATTERN "tier_redis.h" EXCLUDE)
endif()
install(DIRECTORY include/kvcache DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING PATTERN "*.h" ${without_store})
install(TARGETS ${libraries} EXPORT kvcache-targets)
install(EXPORT kvcache-targets NAMESPACE kvcache:: DESTINATION ${package_dir})

configure_package_config_file(cmake/kvcache-config.cmake.in
    ${PROJECT_BINARY_DIR}/cmake/kvcache-config.cmake INSTALL_DESTINATION ${package_dir})
# As the soname: while the major version is 0, every minor version stands for itself.
set(compatibility SameMajorVersion)
if(PROJECT_VERSION_MAJOR EQUAL 0)
    set(compatibility SameMinorVersion)
endif()
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/kvcache-config-version.cmake
    COMPATIBILITY ${compatibility})
install(FILES
    ${PROJECT_BINARY_DIR}/cmake/kvcache-config.cmake
    ${PROJECT_BINARY_DIR}/cmake/kvcache-config-version.cmake
    DESTINATION ${package_dir})

set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH prefix_from_pc /${pkgconfig_dir} /)
cmake_path(SET KVC_PREFIX NORMALIZE "${prefix_from_pc}.")
configure_file(cmake/kvcache.pc.in ${PROJECT_BINARY_DIR}/cmake/kvcache.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/cmake/kvcache.pc DESTINATION ${pkgconfig_dir})

# The store is a set of its own: who wants the core alone needs no jansson.
if(KVC_STORE)
    set(libraries kvcache_store_static)
    if(KVC_BUILD_SHARED)
        list(APPEND libraries kvcache_store)
    endif()
    install(TARGETS ${libraries} EXPORT kvcache-store-targets)
    install(EXPORT kvcache-store-targets NAMESPACE kvcache:: DESTINATION ${package_dir})
    configure_file(cmake/kvcache-store.pc.in ${PROJECT_BINARY_DIR}/cmake/kvcache-store.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/cmake/kvcache-store.pc DESTINATION ${pkgconfig_dir})
endif()

if(KVC_REDIS)
    set(libraries kvcache_redis_static)
    if(KVC_BUILD_SHARED)
        list(APPEND libraries kvcache_redis)
    endif()
    install(TARGETS ${libraries} EXPORT kvcache-redis-targets)
    install(EXPORT kvcache-redis-targets NAMESPACE kvcache:: DESTINATION ${package_dir})
    configure_file(cmake/kvcache-redis.pc.in ${PROJECT_BINARY_DIR}/cmake/kvcache-redis.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/cmake/kvcache-redis.pc DESTINATION ${pkgconfig_dir})
endif()
