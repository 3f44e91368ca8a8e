// An LLVM pass that decides, before any inlining, which functions are compiled for speed and which for size.
//
// A program is stored whole and paid for by the byte, but only some of its instructions run often.
// --sbpf-fast names these. They and the functions that they call stay unchanged; every other function is
// marked `minsize`. Libraries also request inlining for functions that are far from small. The pass honours
// such a request only for small functions; for others, the compiler decides by the goal set for the caller.
// --sbpf-inline and --sbpf-outline are for the few functions that need a different choice.

#include "llvm/ADT/SetVector.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/Module.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Plugins/PassPlugin.h"
#include "llvm/Support/CommandLine.h"

using namespace llvm;

namespace {

cl::list<std::string> Fast("sbpf-fast", cl::CommaSeparated, cl::desc("instructions compiled for speed"));
cl::list<std::string> Inline("sbpf-inline", cl::CommaSeparated, cl::desc("functions inlined as their author asks"));
cl::list<std::string> Outline("sbpf-outline", cl::CommaSeparated, cl::desc("functions never inlined"));

constexpr unsigned Small = 16; // instructions before optimization

// Returns a path like `Type::function` in the form of Rust's mangling v0: each part after its length.
std::string mangled(StringRef Path) {
  std::string Result;
  while (!Path.empty()) {
    auto [Part, Rest] = Path.split("::");
    Result += (Twine(Part.size()) + (Part.front() == '_' ? "_" : "") + Part).str();
    Path = Rest;
  }
  return Result;
}

bool isOneOf(const Function &F, const cl::list<std::string> &Paths) {
  return any_of(Paths, [&](const std::string &Path) { return F.getName().contains(mangled(Path)); });
}

struct SbpfSize : PassInfoMixin<SbpfSize> {
  static bool isRequired() { return true; }

  static bool isSmall(Function &F) {
    unsigned Count = 0;
    for (Instruction &I : instructions(F))
      Count += !isa<AllocaInst>(I) && !I.isLifetimeStartOrEnd();
    return Count <= Small;
  }

  // Returns the functions named by `--sbpf-fast`, and every function that they call.
  static SmallSetVector<Function *, 32> fast(Module &M) {
    SmallSetVector<Function *, 32> Found;
    for (Function &F : M)
      if (!F.isDeclaration() && isOneOf(F, Fast))
        Found.insert(&F);
    for (unsigned I = 0; I < Found.size(); ++I)
      for (Instruction &Each : instructions(*Found[I]))
        if (auto *Call = dyn_cast<CallBase>(&Each))
          if (Function *Callee = Call->getCalledFunction(); Callee && !Callee->isDeclaration())
            Found.insert(Callee);
    return Found;
  }

  PreservedAnalyses run(Module &M, ModuleAnalysisManager &) {
    auto Quick = fast(M);
    for (Function &F : M) {
      if (F.isDeclaration())
        continue;
      if (isOneOf(F, Outline)) {
        F.removeFnAttr(Attribute::AlwaysInline);
        F.removeFnAttr(Attribute::InlineHint);
        F.addFnAttr(Attribute::NoInline);
      } else if (!isOneOf(F, Inline) && !isSmall(F)) {
        F.removeFnAttr(Attribute::AlwaysInline);
      }
      // Cargo links some dependencies as separate libraries, without any named function.
      if (!Quick.empty() && !Quick.contains(&F)) {
        F.addFnAttr(Attribute::MinSize);
        F.addFnAttr(Attribute::OptimizeForSize);
      }
    }
    // Calls carry the attribute too.
    for (Function &F : M)
      for (Instruction &I : instructions(F))
        if (auto *Call = dyn_cast<CallBase>(&I))
          if (Function *Callee = Call->getCalledFunction())
            if (!Callee->isDeclaration() && !Callee->hasFnAttribute(Attribute::AlwaysInline))
              Call->removeFnAttr(Attribute::AlwaysInline);
    return PreservedAnalyses::none();
  }
};

} // namespace

extern "C" LLVM_ATTRIBUTE_WEAK PassPluginLibraryInfo llvmGetPassPluginInfo() {
  return {LLVM_PLUGIN_API_VERSION, "SbpfSize", "1", [](PassBuilder &PB) {
            PB.registerPipelineParsingCallback(
                [](StringRef Name, ModulePassManager &PM, ArrayRef<PassBuilder::PipelineElement>) {
                  if (Name != "sbpf-size")
                    return false;
                  PM.addPass(SbpfSize());
                  return true;
                });
          }};
}
