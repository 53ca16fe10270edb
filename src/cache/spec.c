#include "cache/spec.h"

#include "array/pack.h"
#include "base/checked.h"
#include "base/error.h"

static kvc_status check_positive(int64_t value, const char *field, int64_t index) {
    if (value > 0) return KVC_OK;
    return kvc__fail(KVC_E_INVALID, "desc.specs[%lld].%s: %lld given, more than 0 wanted",
                     (long long)index, field, (long long)value);
}

static kvc_status check_window(const kvc_layer_spec *spec, int64_t index) {
    if (spec->window >= 0 && spec->keep >= 0 && spec->keep < (spec->window > 0 ? spec->window : 1))
        return KVC_OK;
    return kvc__fail(KVC_E_INVALID,
                     "desc.specs[%lld]: window %lld, keep %lld given; a window of at least 0 "
                     "wanted, and to keep fewer positions than it has",
                     (long long)index, (long long)spec->window, (long long)spec->keep);
}

static kvc_status check_packing(const kvc_layer_spec *spec, int64_t index) {
    if (spec->kv_bits == 0 && spec->kv_group == 0) return KVC_OK;
    if (kvc__packing_check(spec->kv_bits, spec->kv_group) == KVC_OK &&
        spec->key_dim % spec->kv_group == 0 && spec->value_dim % spec->kv_group == 0)
        return KVC_OK;
    return kvc__fail(KVC_E_INVALID,
                     "desc.specs[%lld]: kv_bits %d, kv_group %d given with dims %lld and %lld; 2, "
                     "3, 4, 5, 6 or 8 bits wanted, and groups of 32, 64 or 128 that divide both",
                     (long long)index, spec->kv_bits, spec->kv_group, (long long)spec->key_dim,
                     (long long)spec->value_dim);
}

static kvc_status check_packed_form(const kvc_layer_spec *spec, int64_t index) {
    if ((spec->keys_per_channel || spec->rotated) && !spec->kv_bits)
        return kvc__fail(KVC_E_INVALID,
                         "desc.specs[%lld].%s: given with kv_bits 0; packed rows "
                         "wanted",
                         (long long)index, spec->rotated ? "rotated" : "keys_per_channel");
    if (!spec->keys_per_channel || !spec->window) return KVC_OK;
    return kvc__fail(KVC_E_INVALID,
                     "desc.specs[%lld].keys_per_channel: given with a window of %lld, which drops "
                     "positions one by one, and these are packed together; no window wanted",
                     (long long)index, (long long)spec->window);
}

kvc_status kvc__spec_complete(kvc_layer_spec *spec, int64_t index) {
    if (spec->value_dim == 0) spec->value_dim = spec->key_dim;
    KVC_TRY(check_positive(spec->kv_heads, "kv_heads", index));
    KVC_TRY(check_positive(spec->key_dim, "key_dim", index));
    KVC_TRY(check_positive(spec->value_dim, "value_dim", index));
    if (spec->dtype != KVC_F32 && spec->dtype != KVC_F16 && spec->dtype != KVC_BF16)
        return kvc__fail(KVC_E_INVALID, "desc.specs[%lld].dtype: %s given, f32, f16 or bf16 wanted",
                         (long long)index, kvc_dtype_name(spec->dtype));
    KVC_TRY(check_window(spec, index));
    KVC_TRY(check_packing(spec, index));
    return check_packed_form(spec, index);
}

static kvc_status set_row(kvc__row_format *row, kvc_dtype dtype, int64_t dim) {
    *row = (kvc__row_format){.dtype = dtype, .dim = dim, .positions = 1};
    if (kvc__mul(&row->bytes, (size_t)dim, kvc_dtype_size_bytes(dtype))) return KVC_OK;
    return kvc__fail(KVC_E_RANGE,
                     "desc: a row of %lld elements has more bytes than a size can hold",
                     (long long)dim);
}

/* Of packed elements. */
static int64_t group_bytes(const kvc_layer_spec *spec) {
    return (int64_t)(spec->kv_group / 8) * spec->kv_bits;
}

/* Turns rows of keys into those of blocks of positions: groups of a key become elements of it. */
static kvc_status set_channels(kvc__row_format rows[KVC__PLANES], const kvc_layer_spec *spec) {
    int64_t words;
    if (!kvc__mul_i64(&words, spec->key_dim, group_bytes(spec))) words = INT64_MAX;
    KVC_TRY(set_row(&rows[KVC__KEYS], KVC_U8, words));
    for (int p = KVC__SCALES; p < KVC__SCALES + 2; p++) {
        KVC_TRY(set_row(&rows[p], spec->dtype, spec->key_dim));
        rows[p].positions = spec->kv_group;
    }
    rows[KVC__KEYS].positions = spec->kv_group;
    KVC_TRY(set_row(&rows[KVC__TAIL], spec->dtype, spec->key_dim));
    rows[KVC__TAIL].turn = 2 * (int64_t)spec->kv_group;
    return KVC_OK;
}

kvc_status kvc__spec_rows(kvc__row_format rows[KVC__PLANES], int *used,
                          const kvc_layer_spec *spec) {
    const int64_t dims[2] = {spec->key_dim, spec->value_dim};
    *used = spec->keys_per_channel ? KVC__PLANES : spec->kv_bits ? KVC__TAIL : KVC__SCALES;
    for (int side = 0; side < 2; side++) {
        if (!spec->kv_bits) {
            KVC_TRY(set_row(&rows[side], spec->dtype, dims[side]));
            continue;
        }
        const int64_t groups = dims[side] / spec->kv_group;
        KVC_TRY(set_row(&rows[side], KVC_U8, groups * group_bytes(spec)));
        KVC_TRY(set_row(&rows[KVC__SCALES + 2 * side], spec->dtype, groups));
        KVC_TRY(set_row(&rows[KVC__SCALES + 2 * side + 1], spec->dtype, groups));
    }
    return spec->keys_per_channel ? set_channels(rows, spec) : KVC_OK;
}
