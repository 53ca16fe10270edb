# What every target of this project is compiled with.
function(kvc_compile_options target)
    set_target_properties(${target} PROPERTIES
        C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF C_VISIBILITY_PRESET hidden)
    target_compile_definitions(${target} PRIVATE _GNU_SOURCE)
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Wshadow)
    if(KVC_WERROR)
        target_compile_options(${target} PRIVATE -Werror)
    endif()
    if(KVC_SLOW_ASSERTS)
        target_compile_definitions(${target} PRIVATE KVC_SLOW_ASSERTS)
    endif()
endfunction()

if(KVC_SANITIZE)
    add_compile_options(-fsanitize=${KVC_SANITIZE} -fno-sanitize-recover=all
        -fno-omit-frame-pointer)
    add_link_options(-fsanitize=${KVC_SANITIZE})
endif()
