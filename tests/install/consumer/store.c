#include <stdio.h>

#include <kvcache/safetensors.h>
#include <kvcache/version.h>

/* Saves and opens a file, and fails once: the sentence comes from the other library. */
int main(int argc, char **argv) {
    kvc_safetensors_writer *writer = NULL;
    kvc_safetensors *file = NULL;
    const int failed = argc != 2 || kvc_safetensors_writer_new(&writer, "") ||
                       kvc_safetensors_writer_metadata(writer, "version", kvc_version()) ||
                       kvc_safetensors_writer_save(writer, argv[1]) ||
                       kvc_safetensors_open(&file, argv[1], 0);
    printf("libkvcache %s\n",
           failed ? kvc_last_error() : kvc_safetensors_metadata(file, "version"));
    kvc_safetensors_close(file);
    kvc_safetensors_writer_free(writer);
    return failed || kvc_safetensors_open(&file, "", 0) != KVC_E_IO || !*kvc_last_error();
}
