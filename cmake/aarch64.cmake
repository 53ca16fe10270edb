# Builds for AArch64 on Debian for another CPU, and runs what it builds under qemu's user mode.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)

# Where scripts/arm-libraries unpacks Debian's packages of the libraries that tests want.
set(debian ${CMAKE_CURRENT_LIST_DIR}/../build-arm/debian)
set(CMAKE_C_STANDARD_INCLUDE_DIRECTORIES ${debian}/usr/include/aarch64-linux-gnu) # OpenSSL's
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${debian})
set(ENV{PKG_CONFIG_LIBDIR} ${debian}/usr/lib/aarch64-linux-gnu/pkgconfig)

# Debian's hiredis.pc names a folder that its library is not in.
foreach(kind EXE SHARED)
    set(CMAKE_${kind}_LINKER_FLAGS_INIT
        "-L${debian}/usr/lib/aarch64-linux-gnu -Wl,-rpath,${debian}/usr/lib/aarch64-linux-gnu")
endforeach()
