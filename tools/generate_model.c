#include "generate_model.h"

#include <openssl/evp.h>
#include <stdio.h>

#include "cli.h"

int model_name(char out[MODEL_NAME_ROOM], const checkpoint *model) {
    unsigned char sum[32];
    if (EVP_Digest(model->file.data, model->file.bytes, sum, NULL, EVP_sha256(), NULL) != 1)
        return cli_fail("libcrypto cannot compute a SHA-256");
    int at = snprintf(out, MODEL_NAME_ROOM, "llama2.c checkpoint, %zu bytes, sha256 ",
                      model->file.bytes);
    for (size_t i = 0; i < sizeof sum; i++)
        at += snprintf(out + at, MODEL_NAME_ROOM - (size_t)at, "%02x", sum[i]);
    return CLI_DONE;
}
