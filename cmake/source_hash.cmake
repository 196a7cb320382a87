# Writes OUT, a source file with a hash of everything that the native module is built from; ROOT is the checkout.
# weft/kernels/build.py computes the same hash of the sources beside it, and so finds a build that is out of date.
file(GLOB sources RELATIVE ${ROOT}
     ${ROOT}/CMakeLists.txt ${ROOT}/src/*.h ${ROOT}/src/*.cpp ${ROOT}/src/kernels/*.h ${ROOT}/src/kernels/*.cpp)
list(SORT sources)
set(listing "")
foreach(source IN LISTS sources)
  file(SHA256 ${ROOT}/${source} digest)
  string(APPEND listing "${digest} ${source}\n")
endforeach()
string(SHA256 total "${listing}")
file(WRITE ${OUT} "extern const char *const weft_source_hash;\nconst char *const weft_source_hash = \"${total}\";\n")
