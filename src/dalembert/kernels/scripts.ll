; Scripts: native calls and moves of words between them, as `kernels/gradients.py` writes them.
;
; A script is a list of lines of words. A place is two words: a space (one of `bases`, or -1) and an offset in bytes, or a
; number where the space is -1. Lines: 0 ends; 6, function, 13 places calls a kernel (`llvm._entry`) with these; others
; are kind, place to, place from, count, x, y, z:
;   1 copies words, and x more times behind these, 2 clears them, 3 stores an address, 4 adds doubles,
;   5 sets the word `to` to z where it is y and one of the words `from` is x,
;   7 makes doubles NaN that are not zero, and if there are such the double behind them, unless the word `from` is y,
;   8 goes to the line at `to` if x to y of the doubles `from` are not zero,
;   9 makes doubles NaN if the double `from` is,
;   10 ends the script if all doubles `from` are zero.
; `answer` is a handler of XLA's foreign functions (xla/ffi/api/c_api.h): its spaces are the arguments and the results of
; the call, and the first number of its attribute is the address of the script. MAJOR and MINOR are versions of that API.
; XLA lets its threads take numbers below 2e-308 for 0: `keep_small` (llvm.py) keeps them while a script is played.
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
define internal i64 @place(ptr %at, ptr %bases) alwaysinline nounwind {
  %space = load i64, ptr %at
  %offset_at = getelementptr i64, ptr %at, i64 1
  %offset = load i64, ptr %offset_at
  %literal = icmp slt i64 %space, 0
  br i1 %literal, label %as_it_is, label %in_space
in_space:
  %base_at = getelementptr i64, ptr %bases, i64 %space
  %base = load i64, ptr %base_at
  %sum = add i64 %base, %offset
  ret i64 %sum
as_it_is:
  ret i64 %offset
}
define void @play(ptr %script, ptr %bases) nounwind {
entry:
  %arguments = alloca [13 x i64]
  br label %line
line:
  %at = phi ptr [ %script, %entry ], [ %behind, %go_on ], [ %behind_call, %called ], [ %to, %leave ]
  %kind = load i64, ptr %at
  switch i64 %kind, label %others [ i64 0, label %over i64 6, label %call ]
call:
  %function_at = getelementptr i64, ptr %at, i64 1
  %function = load ptr, ptr %function_at
  br label %argument
argument:
  %k = phi i64 [ 0, %call ], [ %next_k, %argument ]
  %twice = shl i64 %k, 1
  %beyond = add i64 %twice, 2
  %pair = getelementptr i64, ptr %at, i64 %beyond
  %value = call i64 @place(ptr %pair, ptr %bases)
  %slot = getelementptr i64, ptr %arguments, i64 %k
  store i64 %value, ptr %slot
  %next_k = add i64 %k, 1
  %more_arguments = icmp slt i64 %next_k, 13
  br i1 %more_arguments, label %argument, label %called
called:
  call void %function(ptr %arguments)
  %behind_call = getelementptr i64, ptr %at, i64 28
  br label %line
others:
  %to_at = getelementptr i64, ptr %at, i64 1
  %to_word = call i64 @place(ptr %to_at, ptr %bases)
  %to = inttoptr i64 %to_word to ptr
  %from_at = getelementptr i64, ptr %at, i64 3
  %from_word = call i64 @place(ptr %from_at, ptr %bases)
  %from = inttoptr i64 %from_word to ptr
  %count_at = getelementptr i64, ptr %at, i64 5
  %count = load i64, ptr %count_at
  %bytes = shl i64 %count, 3
  %x_at = getelementptr i64, ptr %at, i64 6
  %x = load i64, ptr %x_at
  %y_at = getelementptr i64, ptr %at, i64 7
  %y = load i64, ptr %y_at
  %z_at = getelementptr i64, ptr %at, i64 8
  %z = load i64, ptr %z_at
  %behind = getelementptr i64, ptr %at, i64 9
  switch i64 %kind, label %over [ i64 1, label %copy i64 2, label %clear i64 3, label %point i64 4, label %add
                                  i64 5, label %judge i64 7, label %mark i64 8, label %jump
                                  i64 9, label %spoil i64 10, label %rest ]
copy:
  %copies = phi i64 [ 0, %others ], [ %next_copies, %copy ]
  %shift = mul i64 %copies, %bytes
  %there = getelementptr i8, ptr %to, i64 %shift
  call void @llvm.memmove.p0.p0.i64(ptr %there, ptr %from, i64 %bytes, i1 false)
  %next_copies = add i64 %copies, 1
  %more_copies = icmp sle i64 %next_copies, %x
  br i1 %more_copies, label %copy, label %go_on
clear:
  call void @llvm.memset.p0.i64(ptr %to, i8 0, i64 %bytes, i1 false)
  br label %go_on
point:
  store i64 %from_word, ptr %to
  br label %go_on
add:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %adding, label %go_on
adding:
  %i = phi i64 [ 0, %add ], [ %next_i, %adding ]
  %a_at = getelementptr double, ptr %to, i64 %i
  %b_at = getelementptr double, ptr %from, i64 %i
  %a = load double, ptr %a_at
  %b = load double, ptr %b_at
  %total = fadd double %a, %b
  store double %total, ptr %a_at
  %next_i = add i64 %i, 1
  %more_sums = icmp slt i64 %next_i, %count
  br i1 %more_sums, label %adding, label %go_on
judge:
  %status = load i64, ptr %to
  %was_good = icmp eq i64 %status, %y
  br i1 %was_good, label %judging, label %go_on
judging:
  %j = phi i64 [ 0, %judge ], [ %next_j, %present ]
  %end_of_marks = icmp sge i64 %j, %count
  br i1 %end_of_marks, label %go_on, label %look
look:
  %m_at = getelementptr i64, ptr %from, i64 %j
  %m = load i64, ptr %m_at
  %lost = icmp eq i64 %m, %x
  br i1 %lost, label %fail, label %present
present:
  %next_j = add i64 %j, 1
  br label %judging
fail:
  store i64 %z, ptr %to
  br label %go_on
mark:
  %flag = load i64, ptr %from
  %is_good = icmp eq i64 %flag, %y
  br i1 %is_good, label %go_on, label %marking
marking:
  %n = phi i64 [ 0, %mark ], [ %next_n, %marked ]
  %any = phi i1 [ false, %mark ], [ %now_any, %marked ]
  %end_of_numbers = icmp sge i64 %n, %count
  br i1 %end_of_numbers, label %marked_all, label %one
one:
  %c_at = getelementptr double, ptr %to, i64 %n
  %c = load double, ptr %c_at
  %none = fcmp oeq double %c, 0.0
  %new = select i1 %none, double 0.0, double 0x7FF8000000000000
  store double %new, ptr %c_at
  br label %marked
marked:
  %next_n = add i64 %n, 1
  %now_any = select i1 %none, i1 %any, i1 true
  br label %marking
marked_all:
  br i1 %any, label %tell, label %go_on
tell:
  %behind_them = getelementptr double, ptr %to, i64 %count
  store double 0x7FF8000000000000, ptr %behind_them
  br label %go_on
spoil:
  %cause = load double, ptr %from
  %spoilt = fcmp uno double %cause, 0.0
  %first_left = icmp sgt i64 %count, 0
  %begin_spoil = and i1 %spoilt, %first_left
  br i1 %begin_spoil, label %spoiling, label %go_on
spoiling:
  %s = phi i64 [ 0, %spoil ], [ %next_s, %spoiling ]
  %s_at = getelementptr double, ptr %to, i64 %s
  store double 0x7FF8000000000000, ptr %s_at
  %next_s = add i64 %s, 1
  %more_spoilt = icmp slt i64 %next_s, %count
  br i1 %more_spoilt, label %spoiling, label %go_on
jump:
  %flags = icmp sgt i64 %count, 0
  br i1 %flags, label %counting, label %decide
counting:
  %f = phi i64 [ 0, %jump ], [ %next_f, %counting ]
  %set = phi i64 [ 0, %jump ], [ %next_set, %counting ]
  %f_at = getelementptr double, ptr %from, i64 %f
  %f_value = load double, ptr %f_at
  %is_set = fcmp une double %f_value, 0.0
  %one_more = zext i1 %is_set to i64
  %next_set = add i64 %set, %one_more
  %next_f = add i64 %f, 1
  %more_flags = icmp slt i64 %next_f, %count
  br i1 %more_flags, label %counting, label %decide
decide:
  %all_set = phi i64 [ 0, %jump ], [ %next_set, %counting ]
  %enough = icmp sge i64 %all_set, %x
  %few = icmp sle i64 %all_set, %y
  %goes = and i1 %enough, %few
  br i1 %goes, label %leave, label %go_on
leave:
  br label %line
rest:
  %z_count = phi i64 [ 0, %others ], [ %next_z, %looking ]
  %looks = icmp slt i64 %z_count, %count
  br i1 %looks, label %looking, label %over
looking:
  %z_place = getelementptr double, ptr %from, i64 %z_count
  %z_value = load double, ptr %z_place
  %next_z = add i64 %z_count, 1
  %is_zero = fcmp oeq double %z_value, 0.0
  br i1 %is_zero, label %rest, label %go_on
go_on:
  br label %line
over:
  ret void
}
define ptr @answer(ptr %frame) nounwind {
entry:
  %extension_at = getelementptr i8, ptr %frame, i64 8
  %extension = load ptr, ptr %extension_at
  %alone = icmp eq ptr %extension, null
  br i1 %alone, label %stage, label %extended
extended:
  %type_at = getelementptr i8, ptr %extension, i64 8
  %type = load i32, ptr %type_at
  %asks = icmp eq i32 %type, 1
  br i1 %asks, label %tell, label %stage
tell:
  %told_at = getelementptr i8, ptr %extension, i64 24
  %told = load ptr, ptr %told_at
  %told_version = getelementptr i8, ptr %told, i64 24
  store i32 MAJOR, ptr %told_version
  %told_minor = getelementptr i8, ptr %told, i64 28
  store i32 MINOR, ptr %told_minor
  %traits = getelementptr i8, ptr %told, i64 32
  store i32 0, ptr %traits
  ret ptr null
stage:
  %stage_at = getelementptr i8, ptr %frame, i64 32
  %number = load i32, ptr %stage_at
  %executes = icmp eq i32 %number, 3
  br i1 %executes, label %execute, label %nothing
nothing:
  ret ptr null
execute:
  %given_at = getelementptr i8, ptr %frame, i64 56
  %given = load i64, ptr %given_at
  %args_at = getelementptr i8, ptr %frame, i64 72
  %args = load ptr, ptr %args_at
  %made_at = getelementptr i8, ptr %frame, i64 96
  %made = load i64, ptr %made_at
  %rets_at = getelementptr i8, ptr %frame, i64 112
  %rets = load ptr, ptr %rets_at
  %all = add i64 %given, %made
  %bases = alloca i64, i64 %all
  br label %buffer
buffer:
  %i = phi i64 [ 0, %execute ], [ %next_i, %take ]
  %more = icmp slt i64 %i, %all
  br i1 %more, label %take, label %go
take:
  %is_given = icmp slt i64 %i, %given
  %behind = sub i64 %i, %given
  %list = select i1 %is_given, ptr %args, ptr %rets
  %index = select i1 %is_given, i64 %i, i64 %behind
  %buffer_at = getelementptr ptr, ptr %list, i64 %index
  %one = load ptr, ptr %buffer_at
  %data_at = getelementptr i8, ptr %one, i64 24
  %data = load i64, ptr %data_at
  %base_at = getelementptr i64, ptr %bases, i64 %i
  store i64 %data, ptr %base_at
  %next_i = add i64 %i, 1
  br label %buffer
go:
  %attributes_at = getelementptr i8, ptr %frame, i64 160
  %attributes = load ptr, ptr %attributes_at
  %first = load ptr, ptr %attributes
  %words_at = getelementptr i8, ptr %first, i64 16
  %words = load ptr, ptr %words_at
  %script = load ptr, ptr %words
  %before = call i64 @keep_small(i64 0, i1 true)
  call void @play(ptr %script, ptr %bases)
  %then = call i64 @keep_small(i64 %before, i1 false)
  ret ptr null
}
