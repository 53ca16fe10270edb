#include "progress_bar.h"

#include "cli.h"
#include "report.h"

enum { WIDTH = 30 };

void progress_bar(const char *what, uint64_t done_bytes, uint64_t total_bytes) {
    static const char marks[] = "##############################";
    char done[REPORT_ROOM], total[REPORT_ROOM];
    const double share = total_bytes ? (double)done_bytes / (double)total_bytes : 1;
    const int filled = (int)(share * WIDTH);
    cli_progress("%-11s[%.*s%*s] %3d %%  %s of %s", what, filled, marks, WIDTH - filled, "",
                 (int)(100 * share), report_bytes(done, (double)done_bytes),
                 report_bytes(total, (double)total_bytes));
}

kvc_status progress_bar_loading(void *context, uint64_t done_bytes, uint64_t total_bytes) {
    (void)context;
    progress_bar("reading", done_bytes, total_bytes);
    return KVC_OK;
}

kvc_status progress_bar_saving(void *context, uint64_t done_bytes, uint64_t total_bytes) {
    char total[REPORT_ROOM];
    (void)context;
    if (done_bytes < total_bytes) {
        progress_bar("writing", done_bytes, total_bytes);
        return KVC_OK;
    }
    cli_progress_at_once();
    cli_progress("flushing   %s to the disk", report_bytes(total, (double)total_bytes));
    return KVC_OK;
}
