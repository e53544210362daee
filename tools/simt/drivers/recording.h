// SIMT_RECORD=FOLDER: every program and every launch in files, for running the launches elsewhere. The README has the format.
#pragma once
#include "../runtime/runtime.h"

namespace recording {

bool is_on();
std::string digest(const std::string &code);
// Keeps the source of compiled code.
void keep(const simt::Source &source, const std::string &code);

// Keeps the buffers that a launch's arguments point into when made, and again at the end.
class Launch {
  public:
    Launch(const std::string &digest, const simt_kernel *kernel, const simt::Geometry &geometry, const std::vector<void *> &arguments);
    void finish();

  private:
    std::string stem, description;
    std::vector<simt::Allocation> buffers;
};

} // namespace recording
