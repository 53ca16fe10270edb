/** @file
 * The option --tier: a store of blocks below memory, as a text: "disk:FOLDER", "redis://…". A
 * program that was built without libkvcache-store refuses all of them (tier_none.c). */
#ifndef KVCACHE_TOOLS_TIER_OPTION_H
#define KVCACHE_TOOLS_TIER_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/spill.h>

/** The tiers that the command line names, in order. Texts are borrowed from it. */
typedef struct tier_options {
    const char *texts[KVC_SPILL_TIERS_MAX];
    int64_t count;
} tier_options;

/** Takes one more. Nothing is opened.
 * @return true, or false after telling what was given and what is wanted */
bool tier_option_take(tier_options *out, const char *text);

/** Returns the kind of a tier, "disk" or "redis". Its text may hold a password. Static. */
const char *tier_option_kind(const char *text);

/** Returns the folder of a disk tier; NULL for others. */
const char *tier_option_folder(const char *text);

/** Makes a tier for measuring of one that was given: in a new folder of its own, where it is a
 * folder.
 * @param out     [PATH_MAX] receives its text
 * @param folder  [room] receives what is to be removed again, by scratch_remove
 * @return        CLI_DONE, or CLI_FAILED with a line */
int tier_option_scratch(char *out, char *folder, size_t room, const char *text);

/** Opens a tier.
 * @param desc     fingerprint and log of it
 * @param seconds  Redis forgets values after so many; 0: never
 * @return         CLI_DONE, or CLI_FAILED with a line */
int tier_option_open(kvc_tier **out, const char *text, const kvc_tier_desc *desc, int64_t seconds);

#endif
