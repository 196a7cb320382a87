#include <nanobind/nanobind.h>

NB_MODULE(_native, module) { module.attr("version") = "0.1.0"; }
