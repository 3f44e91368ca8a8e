// An LLVM pass that rewrites code that LLVM 22's BPF backend refuses into code that it accepts:
//
//   * more than five argument registers           -> the fifth argument points at a struct of the rest
//   * a result wider than one register            -> a hidden first argument points at the result
//   * memcpy, memmove, memset of over 64 bytes    -> the syscalls sol_memmove_, sol_memset_
//   * products of more than 64 bits, and 64-bit
//     multiplication with overflow check          -> 64-bit arithmetic
//   * signed division                             -> unsigned division and a correction of the sign
//
// The rewrite of a signature depends only on the function type, so that the definition, a direct call and a
// call through a vtable always agree. Before it changes anything, the pass looks for code that it would
// translate wrongly, and stops with an error that names the functions. The backend refuses anything else
// unknown to the pass.

#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/Module.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Plugins/PassPlugin.h"
#include "llvm/Support/ErrorHandling.h"

using namespace llvm;

namespace {

constexpr unsigned MaxArgRegs = 5;     // r1 to r5
constexpr uint64_t MaxInlineCopy = 64; // bytes; a syscall costs 10 compute units and more

// A function type after the rewrite.
struct Lowered {
  bool Changed = false;
  bool Sret = false;            // the result goes through a hidden pointer
  unsigned Kept = 0;            // number of leading arguments that stay arguments
  StructType *Packed = nullptr; // the others, or null
  FunctionType *Type = nullptr;
};

// Returns the number of registers for a value of this type.
unsigned regs(Type *T, const DataLayout &DL) {
  return T->isVoidTy() ? 0 : (unsigned)((DL.getTypeSizeInBits(T) + 63) / 64);
}

// Finds code that the pass cannot handle: it would drop it, or rewrite it so that definition and call
// disagree.
class Unhandled {
  Module &M;
  bool (*Changes)(FunctionType *, const DataLayout &);
  SmallPtrSet<FunctionType *, 32> Reachable; // the types of functions whose address is taken
  std::string Found;

  void complain(const Function &F, const Twine &What) {
    Found += ("\n  " + F.getName() + ": " + What).str();
  }

  // True for attributes of arguments and results that do not affect a program's meaning, and for `sret`,
  // which the rewrite implements. All others, including ones that LLVM does not have yet, may change how a
  // value is passed.
  static bool isHint(Attribute A) {
    if (A.isStringAttribute())
      return true;
    switch (A.getKindAsEnum()) {
    case Attribute::Alignment:
    case Attribute::AllocAlign:
    case Attribute::AllocatedPointer:
    case Attribute::Captures:
    case Attribute::DeadOnReturn:
    case Attribute::DeadOnUnwind:
    case Attribute::Dereferenceable:
    case Attribute::DereferenceableOrNull:
    case Attribute::Initializes:
    case Attribute::NoAlias:
    case Attribute::NoExt:
    case Attribute::NoFPClass:
    case Attribute::NoFree:
    case Attribute::NonNull:
    case Attribute::NoUndef:
    case Attribute::Range:
    case Attribute::ReadNone:
    case Attribute::ReadOnly:
    case Attribute::Returned:
    case Attribute::SExt:
    case Attribute::StructRet:
    case Attribute::Writable:
    case Attribute::WriteOnly:
    case Attribute::ZExt:
      return true;
    default:
      return false;
    }
  }

  void checkAttributes(const Function &F, const AttributeList &List, unsigned Arguments, const Twine &Where) {
    for (unsigned I = 0; I < Arguments; ++I)
      for (Attribute A : List.getParamAttrs(I))
        if (!isHint(A))
          complain(F, "the attribute " + A.getAsString() + " of an argument" + Where);
    for (Attribute A : List.getRetAttrs())
      if (!isHint(A))
        complain(F, "the attribute " + A.getAsString() + " of the result" + Where);
  }

  static bool isKnown(CallingConv::ID Convention) {
    return Convention == CallingConv::C || Convention == CallingConv::Fast || Convention == CallingConv::Cold;
  }

  void checkDeclaration(const Function &F) {
    if (F.getName() != "abort" && !F.getName().starts_with("sol_"))
      complain(F, "is declared outside of the program, and no syscall");
    else if (F.isVarArg() || Changes(F.getFunctionType(), M.getDataLayout()))
      complain(F, "a syscall takes five registers and returns one");
  }

  void checkFunction(const Function &F) {
    checkAttributes(F, F.getAttributes(), F.arg_size(), "");
    if (!isKnown(F.getCallingConv()))
      complain(F, "its calling convention");
    if (F.isDeclaration())
      return checkDeclaration(F);
    if (F.isVarArg())
      complain(F, "a variable number of arguments");
    if (F.hasPersonalityFn())
      complain(F, "it unwinds");
    for (auto A : {Attribute::Naked, Attribute::PresplitCoroutine})
      if (F.hasFnAttribute(A))
        complain(F, "the attribute " + Attribute::getNameFromAttrKind(A));
    if (Changes(F.getFunctionType(), M.getDataLayout()) &&
        (F.hasSection() || F.hasPrefixData() || F.hasPrologueData() || F.hasGC() ||
         F.hasFnAttribute(Attribute::AllocSize)))
      complain(F, "a section, data, a collector or arguments with a meaning of their own");
  }

  void checkCall(const Function &F, const CallBase &Call) {
    if (!isa<CallInst>(Call))
      return complain(F, Twine("the instruction ") + Call.getOpcodeName());
    if (Call.isInlineAsm())
      return;
    if (auto *Intrinsic = dyn_cast<IntrinsicInst>(&Call)) {
      if (isa<AnyMemIntrinsic>(Intrinsic) && !isa<MemIntrinsic>(Intrinsic))
        complain(F, "calls " + Intrinsic->getCalledFunction()->getName());
      return;
    }
    checkAttributes(F, Call.getAttributes(), Call.arg_size(), " of a call");
    if (Call.isMustTailCall())
      complain(F, "a call that must be in its caller's frame");
    if (Call.hasOperandBundles())
      complain(F, "operands apart from a call's arguments");
    if (!isKnown(Call.getCallingConv()))
      complain(F, "the calling convention of a call");
    auto *Callee = dyn_cast<Function>(Call.getCalledOperand()->stripPointerCasts());
    if (Callee && (Callee->getFunctionType() != Call.getFunctionType() ||
                   Callee->getCallingConv() != Call.getCallingConv()))
      complain(F, "calls " + Callee->getName() + " as another type than it has");
    // The target is unknown. If no function has this type, though, the rewritten call matches no definition.
    // (A type that is not rewritten is harmless: the call is never made, such as the drop of a type that is
    // never boxed.)
    FunctionType *Type = Call.getFunctionType();
    if (!Callee && Changes(Type, M.getDataLayout()) && !Reachable.contains(Type))
      complain(F, "calls a pointer as a type that no function in the program has");
  }

public:
  Unhandled(Module &M, bool (*Changes)(FunctionType *, const DataLayout &)) : M(M), Changes(Changes) {
    for (const Function &F : M)
      if (F.hasAddressTaken())
        Reachable.insert(F.getFunctionType());
  }

  // Stops the compiler with an error if anything was found.
  void refuse() {
    for (const Function &F : M) {
      if (F.isIntrinsic())
        continue;
      checkFunction(F);
      for (const Instruction &I : instructions(F))
        if (auto *Call = dyn_cast<CallBase>(&I))
          checkCall(F, *Call);
    }
    for (const GlobalAlias &A : M.aliases())
      Found += ("\n  " + A.getName() + ": another name of a function or variable").str();
    for (const GlobalIFunc &I : M.ifuncs())
      Found += ("\n  " + I.getName() + ": a function that is chosen when it is loaded").str();
    for (const GlobalVariable &V : M.globals())
      if (V.isDeclaration())
        Found += ("\n  " + V.getName() + ": a variable outside of the program").str();
    if (!Found.empty())
      report_fatal_error(Twine("SbpfAbi does not handle:") + Found, /*gen_crash_diag=*/false);
  }
};

struct SbpfAbi : PassInfoMixin<SbpfAbi> {
  static bool isRequired() { return true; }

  static bool changes(FunctionType *FT, const DataLayout &DL) { return lower(FT, DL).Changed; }

  static Lowered lower(FunctionType *FT, const DataLayout &DL) {
    Lowered L;
    L.Type = FT;
    if (FT->isVarArg())
      return L;
    Type *Ret = FT->getReturnType();
    L.Sret = Ret->isAggregateType() || regs(Ret, DL) > 1;
    unsigned Total = L.Sret;
    for (Type *P : FT->params())
      Total += std::max(1u, regs(P, DL));
    bool Pack = Total > MaxArgRegs;
    if (!L.Sret && !Pack)
      return L;

    L.Changed = true;
    LLVMContext &C = FT->getContext();
    Type *Ptr = PointerType::get(C, 0);
    SmallVector<Type *> Params;
    if (L.Sret)
      Params.push_back(Ptr);
    unsigned Used = Params.size(), Room = Pack ? MaxArgRegs - 1 : MaxArgRegs, I = 0;
    for (; I < FT->getNumParams(); ++I) {
      unsigned W = std::max(1u, regs(FT->getParamType(I), DL));
      if (Used + W > Room)
        break;
      Used += W;
      Params.push_back(FT->getParamType(I));
    }
    L.Kept = I;
    if (Pack) {
      L.Packed = StructType::get(C, SmallVector<Type *>(FT->param_begin() + I, FT->param_end()));
      Params.push_back(Ptr);
    }
    L.Type = FunctionType::get(L.Sret ? Type::getVoidTy(C) : Ret, Params, false);
    return L;
  }

  // Replaces F by a function of the lowered type with the same body.
  static void rewriteFunction(Function *F, const Lowered &L) {
    Function *G = Function::Create(L.Type, F->getLinkage(), F->getAddressSpace(), "", F->getParent());
    G->takeName(F);
    G->setCallingConv(F->getCallingConv()); // a mismatch with the call is undefined behaviour
    G->setUnnamedAddr(F->getUnnamedAddr());
    G->setDSOLocal(F->isDSOLocal());
    G->setVisibility(F->getVisibility());
    G->addFnAttrs(AttrBuilder(F->getContext(), F->getAttributes().getFnAttrs()));
    G->removeFnAttr(Attribute::Memory); // it now reads or writes through the new pointers
    if (!F->isDeclaration()) {
      G->splice(G->begin(), F);
      IRBuilder<> B(&*G->getEntryBlock().getFirstInsertionPt());
      Value *Rest = L.Packed ? G->getArg(G->arg_size() - 1) : nullptr;
      for (unsigned I = 0; I < F->arg_size(); ++I) {
        Argument *A = F->getArg(I);
        Value *V = I < L.Kept ? (Value *)G->getArg(L.Sret + I)
                              : B.CreateLoad(A->getType(), B.CreateStructGEP(L.Packed, Rest, I - L.Kept));
        A->replaceAllUsesWith(V);
      }
      if (L.Sret) {
        SmallVector<ReturnInst *> Rets;
        for (BasicBlock &BB : *G)
          if (auto *R = dyn_cast<ReturnInst>(BB.getTerminator()))
            Rets.push_back(R);
        for (ReturnInst *R : Rets) {
          IRBuilder<> RB(R);
          RB.CreateStore(R->getReturnValue(), G->getArg(0));
          RB.CreateRetVoid();
          R->eraseFromParent();
        }
      }
    }
    F->replaceAllUsesWith(G);
    F->eraseFromParent();
  }

  // Replaces a call by one of the lowered type; its slots lie in the caller's frame.
  static void rewriteCall(CallInst *Call, const Lowered &L) {
    IRBuilder<> Entry(&*Call->getFunction()->getEntryBlock().getFirstInsertionPt());
    IRBuilder<> B(Call);
    SmallVector<Value *> Args;
    Value *Slot = nullptr;
    if (L.Sret)
      Args.push_back(Slot = Entry.CreateAlloca(Call->getType()));
    for (unsigned I = 0; I < L.Kept; ++I)
      Args.push_back(Call->getArgOperand(I));
    if (L.Packed) {
      Value *Rest = Entry.CreateAlloca(L.Packed);
      for (unsigned I = L.Kept; I < Call->arg_size(); ++I)
        B.CreateStore(Call->getArgOperand(I), B.CreateStructGEP(L.Packed, Rest, I - L.Kept));
      Args.push_back(Rest);
    }
    CallInst *New = B.CreateCall(L.Type, Call->getCalledOperand(), Args);
    New->setCallingConv(Call->getCallingConv());
    New->addFnAttr(Attribute::NoUnwind);
    if (Call->doesNotReturn())
      New->setDoesNotReturn();
    if (L.Sret)
      Call->replaceAllUsesWith(B.CreateLoad(Call->getType(), Slot));
    else if (!Call->getType()->isVoidTy())
      Call->replaceAllUsesWith(New);
    Call->eraseFromParent();
  }

  // A panic that aborts at once is a trap, which corresponds to the runtime's syscall `abort`.
  static void rewriteTraps(Module &M) {
    SmallVector<IntrinsicInst *> Traps;
    for (Function &F : M)
      for (Instruction &I : instructions(F))
        if (auto *Call = dyn_cast<IntrinsicInst>(&I))
          if (Call->getIntrinsicID() == Intrinsic::trap)
            Traps.push_back(Call);
    for (IntrinsicInst *Trap : Traps) {
      Function *Abort = syscall(M, "abort", {});
      Abort->addFnAttr(Attribute::Cold);
      Abort->addFnAttr(Attribute::NoReturn);
      IRBuilder<>(Trap).CreateCall(Abort)->setDoesNotReturn();
      Trap->eraseFromParent();
    }
  }

  // Returns a function that calls the syscall. Every direct call would need its own entry in the relocation
  // table.
  static Function *syscall(Module &M, StringRef Name, ArrayRef<Type *> Params) {
    std::string Wrapper = ("sbpf." + Name).str();
    if (Function *F = M.getFunction(Wrapper))
      return F;
    LLVMContext &C = M.getContext();
    FunctionType *FT = FunctionType::get(Type::getVoidTy(C), Params, false);
    Function *F = Function::Create(FT, GlobalValue::InternalLinkage, Wrapper, &M);
    for (auto A : {Attribute::NoInline, Attribute::NoUnwind})
      F->addFnAttr(A);
    IRBuilder<> B(BasicBlock::Create(C, "", F));
    SmallVector<Value *> Arguments;
    for (Argument &A : F->args())
      Arguments.push_back(&A);
    B.CreateCall(M.getOrInsertFunction(Name, FT), Arguments);
    B.CreateRetVoid();
    return F;
  }

  // True if the call uses memcmp only to test two short blocks for equality.
  static bool isEqualityTest(CallInst *Call) {
    Function *Callee = Call->getCalledFunction();
    if (!Callee || Call->arg_size() != 3 || (Callee->getName() != "memcmp" && Callee->getName() != "bcmp"))
      return false;
    auto *N = dyn_cast<ConstantInt>(Call->getArgOperand(2));
    if (!N || N->isZero() || N->getZExtValue() % 8 || N->getZExtValue() > MaxInlineCopy)
      return false;
    return all_of(Call->users(), [](User *U) {
      auto *Cmp = dyn_cast<ICmpInst>(U);
      auto *Zero = Cmp ? dyn_cast<ConstantInt>(Cmp->getOperand(1)) : nullptr;
      return Zero && Zero->isZero() && Cmp->isEquality();
    });
  }

  // Compares such blocks by whole words instead of calling a function that walks bytes.
  static void rewriteEqualityTests(Module &M) {
    SmallVector<CallInst *> Calls;
    for (Function &F : M)
      for (Instruction &I : instructions(F))
        if (auto *Call = dyn_cast<CallInst>(&I))
          if (isEqualityTest(Call))
            Calls.push_back(Call);
    for (CallInst *Call : Calls) {
      IRBuilder<> B(Call);
      uint64_t Size = cast<ConstantInt>(Call->getArgOperand(2))->getZExtValue();
      auto Word = [&](unsigned Operand, uint64_t Offset) {
        Value *Pointer = B.CreateConstInBoundsGEP1_64(B.getInt8Ty(), Call->getArgOperand(Operand), Offset);
        return B.CreateAlignedLoad(B.getInt64Ty(), Pointer, Align(1));
      };
      Value *Difference = B.getInt64(0);
      for (uint64_t Offset = 0; Offset < Size; Offset += 8) {
        Value *Left = Word(0, Offset), *Right = Word(1, Offset);
        Difference = B.CreateOr(Difference, B.CreateXor(Left, Right));
      }
      for (User *U : make_early_inc_range(Call->users())) {
        auto *Cmp = cast<ICmpInst>(U);
        IRBuilder<> C(Cmp);
        Cmp->replaceAllUsesWith(C.CreateICmp(Cmp->getPredicate(), Difference, C.getInt64(0)));
        Cmp->eraseFromParent();
      }
      Call->eraseFromParent();
    }
  }

  static void rewriteCopies(Module &M) {
    SmallVector<MemIntrinsic *> Copies;
    for (Function &F : M) {
      F.addFnAttr("no-builtins"); // no later pass may turn a loop back into memcpy
      for (Instruction &I : instructions(F))
        if (auto *MI = dyn_cast<MemIntrinsic>(&I)) {
          auto *N = dyn_cast<ConstantInt>(MI->getLength());
          if (!N || N->getZExtValue() > MaxInlineCopy)
            Copies.push_back(MI);
        }
    }
    for (MemIntrinsic *MI : Copies) {
      IRBuilder<> B(MI);
      Type *Ptr = B.getPtrTy(), *I64 = B.getInt64Ty();
      auto *Set = dyn_cast<MemSetInst>(MI);
      Value *Second = Set ? B.CreateZExt(Set->getValue(), I64) : cast<MemTransferInst>(MI)->getRawSource();
      StringRef Name = Set ? "sol_memset_" : "sol_memmove_";
      SmallVector<Type *> Params = {Ptr, Set ? I64 : Ptr, I64};
      FunctionCallee Syscall = M.getOrInsertFunction(Name, FunctionType::get(B.getVoidTy(), Params, false));
      // Call it through a function if size matters more.
      if (MI->getFunction()->hasMinSize())
        Syscall = syscall(M, Name, Params);
      B.CreateCall(Syscall, {MI->getRawDest(), Second, B.CreateZExtOrTrunc(MI->getLength(), I64)});
      MI->eraseFromParent();
    }
  }

  // Returns the function for the high half of a 64x64-bit product. It is opaque, so that no later pass
  // rebuilds the wide multiplication.
  static Function *mulHigh(Module &M) {
    if (Function *F = M.getFunction("sbpf.umulhi"))
      return F;
    LLVMContext &C = M.getContext();
    Type *I64 = Type::getInt64Ty(C);
    Function *F = Function::Create(FunctionType::get(I64, {I64, I64}, false), GlobalValue::InternalLinkage,
                                   "sbpf.umulhi", &M);
    for (auto A : {Attribute::NoInline, Attribute::OptimizeNone, Attribute::NoUnwind})
      F->addFnAttr(A);
    IRBuilder<> B(BasicBlock::Create(C, "", F));
    Value *X = F->getArg(0), *Y = F->getArg(1);
    auto Lo = [&](Value *V) { return B.CreateAnd(V, B.getInt64(0xffffffff)); };
    auto Hi = [&](Value *V) { return B.CreateLShr(V, 32); };
    Value *Mid = B.CreateAdd(B.CreateMul(Hi(X), Lo(Y)), Hi(B.CreateMul(Lo(X), Lo(Y))));
    Value *Mid2 = B.CreateAdd(B.CreateMul(Lo(X), Hi(Y)), Lo(Mid));
    B.CreateRet(B.CreateAdd(B.CreateAdd(B.CreateMul(Hi(X), Hi(Y)), Hi(Mid)), Hi(Mid2)));
    return F;
  }

  // Returns the product of two values of 65 to 128 bits.
  static Value *wideProduct(IRBuilder<> &B, Module &M, Value *X, Value *Y) {
    Type *I64 = B.getInt64Ty(), *I128 = B.getInt128Ty();
    auto Low = [&](Value *V) { return B.CreateTrunc(V, I64); };
    auto High = [&](Value *V) { return B.CreateTrunc(B.CreateLShr(V, 64), I64); };
    // The low bits of a product do not depend on how the factors were extended.
    Value *WideX = B.CreateZExt(X, I128), *WideY = B.CreateZExt(Y, I128);
    Value *X0 = Low(WideX), *X1 = High(WideX), *Y0 = Low(WideY), *Y1 = High(WideY);
    Value *Top = B.CreateAdd(B.CreateMul(X0, Y1), B.CreateMul(X1, Y0));
    Top = B.CreateAdd(Top, B.CreateCall(mulHigh(M), {X0, Y0}));
    Value *Bottom = B.CreateZExt(B.CreateMul(X0, Y0), I128);
    return B.CreateTrunc(B.CreateOr(Bottom, B.CreateShl(B.CreateZExt(Top, I128), 64)), X->getType());
  }

  // Returns the pair of a 64-bit product and its overflow flag.
  static Value *checkedProduct(IRBuilder<> &B, Module &M, WithOverflowInst *O) {
    Value *X = O->getLHS(), *Y = O->getRHS(), *Zero = B.getInt64(0);
    Value *Product = B.CreateMul(X, Y), *Top = B.CreateCall(mulHigh(M), {X, Y}), *Expected = Zero;
    if (O->isSigned()) {
      Top = B.CreateSub(Top, B.CreateSelect(B.CreateICmpSLT(X, Zero), Y, Zero));
      Top = B.CreateSub(Top, B.CreateSelect(B.CreateICmpSLT(Y, Zero), X, Zero));
      Expected = B.CreateAShr(Product, 63);
    }
    Value *Pair = B.CreateInsertValue(PoisonValue::get(O->getType()), Product, 0);
    return B.CreateInsertValue(Pair, B.CreateICmpNE(Top, Expected), 1);
  }

  // Returns quotient or remainder, rounded towards zero: the quotient is negative if the signs differ, and
  // the remainder has the sign of the dividend. With S = 0 or -1, (V ^ S) - S is V or -V.
  static Value *signedDivision(IRBuilder<> &B, BinaryOperator *I) {
    Type *I64 = B.getInt64Ty();
    bool Quotient = I->getOpcode() == Instruction::SDiv;
    auto Negate = [&](Value *V, Value *S) { return B.CreateSub(B.CreateXor(V, S), S); };
    Value *X = B.CreateSExt(I->getOperand(0), I64), *Y = B.CreateSExt(I->getOperand(1), I64);
    Value *SignX = B.CreateAShr(X, 63), *SignY = B.CreateAShr(Y, 63);
    Value *AbsX = Negate(X, SignX), *AbsY = Negate(Y, SignY);
    Value *Result = Quotient ? Negate(B.CreateUDiv(AbsX, AbsY), B.CreateXor(SignX, SignY))
                             : Negate(B.CreateURem(AbsX, AbsY), SignX);
    return B.CreateTrunc(Result, I->getType());
  }

  static void rewriteArithmetic(Module &M) {
    SmallVector<Instruction *> Instructions;
    for (Function &F : M)
      for (Instruction &I : instructions(F))
        Instructions.push_back(&I);
    for (Instruction *I : Instructions) {
      IRBuilder<> B(I);
      Value *New = nullptr;
      unsigned Bits = I->getType()->isIntegerTy() ? I->getType()->getIntegerBitWidth() : 0;
      if (auto *O = dyn_cast<WithOverflowInst>(I)) {
        if (O->getBinaryOp() == Instruction::Mul && O->getLHS()->getType()->isIntegerTy(64))
          New = checkedProduct(B, M, O);
      } else if (I->getOpcode() == Instruction::Mul && Bits > 64 && Bits <= 128) {
        New = wideProduct(B, M, I->getOperand(0), I->getOperand(1));
      } else if ((I->getOpcode() == Instruction::SDiv || I->getOpcode() == Instruction::SRem) && Bits &&
                 Bits <= 64) {
        New = signedDivision(B, cast<BinaryOperator>(I));
      }
      if (!New)
        continue;
      I->replaceAllUsesWith(New);
      I->eraseFromParent();
    }
  }

  PreservedAnalyses run(Module &M, ModuleAnalysisManager &) {
    const DataLayout &DL = M.getDataLayout();
    Unhandled(M, changes).refuse();
    rewriteTraps(M);
    rewriteArithmetic(M);
    rewriteEqualityTests(M);

    SmallVector<Function *> Functions;
    for (Function &F : M)
      if (!F.isIntrinsic())
        Functions.push_back(&F);
    for (Function *F : Functions) {
      Lowered L = lower(F->getFunctionType(), DL);
      if (L.Changed)
        rewriteFunction(F, L);
    }

    SmallVector<CallInst *> Calls;
    for (Function &F : M)
      for (Instruction &I : instructions(F)) {
        auto *Call = dyn_cast<CallInst>(&I);
        if (!Call || Call->isInlineAsm() || isa<IntrinsicInst>(Call))
          continue;
        if (lower(Call->getFunctionType(), DL).Changed)
          Calls.push_back(Call);
      }
    for (CallInst *Call : Calls)
      rewriteCall(Call, lower(Call->getFunctionType(), DL));

    rewriteCopies(M);

    // The backend treats `sret` itself as an aggregate return.
    for (Function &F : M) {
      if (F.isIntrinsic())
        continue;
      for (unsigned I = 0; I < F.arg_size(); ++I)
        F.removeParamAttr(I, Attribute::StructRet);
      for (Instruction &I : instructions(F))
        if (auto *Call = dyn_cast<CallBase>(&I))
          for (unsigned A = 0; A < Call->arg_size(); ++A)
            Call->removeParamAttr(A, Attribute::StructRet);
    }
    return PreservedAnalyses::none();
  }
};

} // namespace

extern "C" LLVM_ATTRIBUTE_WEAK PassPluginLibraryInfo llvmGetPassPluginInfo() {
  return {LLVM_PLUGIN_API_VERSION, "SbpfAbi", "1", [](PassBuilder &PB) {
            PB.registerPipelineParsingCallback(
                [](StringRef Name, ModulePassManager &PM, ArrayRef<PassBuilder::PipelineElement>) {
                  if (Name != "sbpf-abi")
                    return false;
                  PM.addPass(SbpfAbi());
                  return true;
                });
          }};
}
