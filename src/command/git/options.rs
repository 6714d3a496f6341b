//! The options each git verb takes, as git 2.47 parses them: `git VERB --help-all` and probing for the
//! builtins, the sources of the scripts for the rest. Items are separated by one space: `s,long`, `long` or
//! `s` (one character: a short option), then `=` (takes a value, joined or as the next argument), `?` (takes
//! one only when joined: `--long=v`, `-sv`) or nothing (a flag). `#` is a number as a short option (`-5`).
//! `@rev` and `@diff` stand for `REV` and `DIFF`; a verb's own items come first and win over theirs.
//! `--no-long` is implied by `long`, and `--x` by an option named `no-x` where no `x` of its own is listed.
//! `stash push` and its like are subcommands. Not listed, for every verb: `--`, `--end-of-options`, `-h`,
//! `--help`, `--help-all`, `--git-completion-helper` and `--git-completion-helper-all`.

/// One verb and its options in the notation of this file's header.
pub(super) struct VerbOptions {
    pub verb: &'static str,
    pub options: &'static str,
}

/// Options of the revision walk, shared by log, show, diff and their plumbing (`@rev` in a verb's list).
pub(super) static REV: &str = "\
    # n,max-count= skip= max-age= since= after= since-as-filter= min-age= before= until= first-parent \
    exclude-first-parent-only ancestry-path? g,walk-reflogs default= merge topo-order date-order \
    author-date-order simplify-merges simplify-by-decoration early-output? parents children dense sparse \
    in-commit-order remove-empty full-history full-diff show-pulls merges no-merges min-parents? \
    no-min-parents max-parents? no-max-parents boundary left-right left-only right-only cherry cherry-mark \
    cherry-pick count objects objects-edge objects-edge-aggressive verify-objects unpacked? \
    no-kept-objects? filter? r t m c cc dd diff-merges= no-diff-merges remerge-diff combined-all-paths v \
    pretty? format? expand-tabs? notes? show-notes? show-notes-by-default standard-notes show-signature \
    show-linear-break? oneline graph encode-email-headers root no-commit-id always abbrev? abbrev-commit \
    relative-date date= log-size author= committer= grep-reflog= grep= basic-regexp E,extended-regexp \
    i,regexp-ignore-case F,fixed-strings P,perl-regexp all-match invert-grep encoding= reverse \
    ignore-missing all branches? tags? remotes? glob= exclude= exclude-hidden= bisect reflog \
    indexed-objects alternate-refs not no-walk? do-walk single-worktree stdin";

/// Options of diff output, shared by log, show, diff and their plumbing (`@diff` in a verb's list).
pub(super) static DIFF: &str = "\
    p,patch s,no-patch u U,unified? W,function-context raw patch-with-raw patch-with-stat numstat shortstat \
    X,dirstat? cumulative dirstat-by-file? check summary name-only name-status stat? stat-width= \
    stat-name-width= stat-graph-width= stat-count= compact-summary binary full-index color? \
    ws-error-highlight= z abbrev? src-prefix= dst-prefix= line-prefix= no-prefix default-prefix \
    inter-hunk-context= output-indicator-new= output-indicator-old= output-indicator-context= \
    B,break-rewrites? M,find-renames? D,irreversible-delete C,find-copies? find-copies-harder no-renames \
    rename-empty follow l= minimal w,ignore-all-space b,ignore-space-change ignore-space-at-eol \
    ignore-cr-at-eol ignore-blank-lines I,ignore-matching-lines= indent-heuristic patience histogram \
    diff-algorithm= anchored= word-diff? word-diff-regex= color-words? color-moved? color-moved-ws= \
    relative? a,text R exit-code quiet ext-diff textconv ignore-submodules? submodule? \
    ita-invisible-in-index ita-visible-in-index S= G= pickaxe-all pickaxe-regex O= rotate-to= skip-to= \
    find-object= diff-filter= output=";

/// Sorted by verb (byte order), for binary search.
pub(super) static VERBS: &[VerbOptions] = &[
    VerbOptions {
        verb: "add",
        options: "\
            n,dry-run v,verbose i,interactive p,patch e,edit f,force u,update renormalize N,intent-to-add \
            A,all ignore-removal refresh ignore-errors ignore-missing sparse chmod= warn-embedded-repo \
            pathspec-from-file= pathspec-file-nul",
    },
    VerbOptions {
        verb: "am",
        options: "\
            i,interactive n,no-verify b,binary 3,3way q,quiet s,signoff u,utf8 k,keep keep-non-patch \
            m,message-id keep-cr c,scissors quoted-cr= whitespace= ignore-space-change ignore-whitespace \
            directory= exclude= include= C= p= patch-format= reject resolvemsg= continue r,resolved skip \
            abort quit show-current-patch? retry allow-empty committer-date-is-author-date ignore-date \
            rerere-autoupdate S,gpg-sign? empty= rebasing",
    },
    VerbOptions {
        verb: "annotate",
        options: "\
            incremental b root show-stats progress score-debug f,show-name n,show-number p,porcelain \
            line-porcelain c t l s e,show-email w ignore-rev= ignore-revs-file= color-lines color-by-age \
            minimal S= contents= C? M? L= abbrev? @rev @diff",
    },
    VerbOptions {
        verb: "apply",
        options: "\
            exclude= include= p= no-add stat allow-binary-replacement binary numstat summary check index \
            N,intent-to-add cached unsafe-paths apply 3,3way ours theirs union build-fake-ancestor= z C= \
            whitespace= ignore-space-change ignore-whitespace R,reverse unidiff-zero reject allow-overlap \
            v,verbose q,quiet inaccurate-eof recount directory= allow-empty",
    },
    VerbOptions { verb: "archimport", options: "f T h v a t= D=" },
    VerbOptions {
        verb: "archive",
        options: "\
            format= prefix= add-file= add-virtual-file= o,output= worktree-attributes v,verbose mtime= # \
            l,list remote= exec=",
    },
    VerbOptions { verb: "bisect", options: "" },
    VerbOptions { verb: "bisect bad", options: "" },
    VerbOptions { verb: "bisect good", options: "" },
    VerbOptions { verb: "bisect log", options: "" },
    VerbOptions { verb: "bisect new", options: "" },
    VerbOptions { verb: "bisect next", options: "" },
    VerbOptions { verb: "bisect old", options: "" },
    VerbOptions { verb: "bisect replay", options: "" },
    VerbOptions { verb: "bisect reset", options: "" },
    VerbOptions { verb: "bisect run", options: "" },
    VerbOptions { verb: "bisect skip", options: "" },
    VerbOptions {
        verb: "bisect start",
        options: "term-good= term-old= term-bad= term-new= no-checkout first-parent",
    },
    VerbOptions { verb: "bisect terms", options: "term-good term-old term-bad term-new" },
    VerbOptions {
        verb: "bisect view",
        options: "\
            q,quiet source use-mailmap mailmap clear-decorations decorate-refs= decorate-refs-exclude= \
            decorate? L= @rev @diff",
    },
    VerbOptions {
        verb: "bisect visualize",
        options: "\
            q,quiet source use-mailmap mailmap clear-decorations decorate-refs= decorate-refs-exclude= \
            decorate? L= @rev @diff",
    },
    VerbOptions {
        verb: "blame",
        options: "\
            incremental b root show-stats progress score-debug f,show-name n,show-number p,porcelain \
            line-porcelain c t l s e,show-email w ignore-rev= ignore-revs-file= color-lines color-by-age \
            minimal S= contents= C? M? L= abbrev? @rev @diff",
    },
    VerbOptions {
        verb: "branch",
        options: "\
            v,verbose q,quiet t,track? set-upstream u,set-upstream-to= unset-upstream color? r,remotes \
            contains= no-contains= with= without= abbrev? a,all d,delete D m,move M omit-empty c,copy C \
            l,list show-current create-reflog edit-description f,force merged= no-merged= column? sort= \
            points-at= i,ignore-case recurse-submodules format=",
    },
    VerbOptions { verb: "bugreport", options: "diagnose? o,output-directory= s,suffix=" },
    VerbOptions { verb: "bundle", options: "" },
    VerbOptions {
        verb: "bundle create",
        options: "q,quiet progress all-progress all-progress-implied version= @rev @diff",
    },
    VerbOptions { verb: "bundle list-heads", options: "" },
    VerbOptions { verb: "bundle unbundle", options: "progress" },
    VerbOptions { verb: "bundle verify", options: "q,quiet" },
    VerbOptions {
        verb: "cat-file",
        options: "\
            e p t s allow-unknown-type use-mailmap mailmap batch? batch-check? z Z batch-command? \
            batch-all-objects buffer follow-symlinks unordered textconv filters path=",
    },
    VerbOptions { verb: "check-attr", options: "a,all cached stdin z source=" },
    VerbOptions { verb: "check-ignore", options: "q,quiet v,verbose stdin z n,non-matching no-index" },
    VerbOptions { verb: "check-mailmap", options: "stdin mailmap-file= mailmap-blob=" },
    VerbOptions {
        verb: "check-ref-format",
        options: "normalize print allow-onelevel no-allow-onelevel refspec-pattern branch=",
    },
    VerbOptions {
        verb: "checkout",
        options: "\
            b= B= l guess overlay q,quiet recurse-submodules? progress m,merge conflict= d,detach t,track? \
            f,force orphan= overwrite-ignore ignore-other-worktrees 2,ours 3,theirs p,patch \
            ignore-skip-worktree-bits pathspec-from-file= pathspec-file-nul",
    },
    VerbOptions { verb: "checkout--worker", options: "prefix=" },
    VerbOptions {
        verb: "checkout-index",
        options: "\
            a,all ignore-skip-worktree-bits f,force q,quiet n,no-create u,index z stdin temp prefix= stage=",
    },
    VerbOptions { verb: "cherry", options: "abbrev? v,verbose" },
    VerbOptions {
        verb: "cherry-pick",
        options: "\
            quit continue abort skip cleanup= n,no-commit e,edit r s,signoff m,mainline= rerere-autoupdate \
            strategy= X,strategy-option= S,gpg-sign? x ff allow-empty allow-empty-message \
            keep-redundant-commits empty= @rev @diff",
    },
    VerbOptions { verb: "citool", options: "amend nocommit" },
    VerbOptions { verb: "clean", options: "q,quiet n,dry-run f,force i,interactive d e,exclude= x X" },
    VerbOptions {
        verb: "clone",
        options: "\
            v,verbose q,quiet progress reject-shallow n,no-checkout bare naked mirror l,local no-hardlinks \
            s,shared recurse-submodules? recursive? j,jobs= template= reference= reference-if-able= \
            dissociate o,origin= b,branch= u,upload-pack= depth= shallow-since= shallow-exclude= \
            single-branch no-tags shallow-submodules separate-git-dir= ref-format= c,config= server-option= \
            4,ipv4 6,ipv6 filter= also-filter-submodules remote-submodules sparse bundle-uri=",
    },
    VerbOptions { verb: "column", options: "command= mode? raw-mode= width= indent= nl= padding=" },
    VerbOptions {
        verb: "commit",
        options: "\
            q,quiet v,verbose F,file= author= date= m,message= c,reedit-message= C,reuse-message= fixup= \
            squash= reset-author trailer= s,signoff t,template= e,edit cleanup= status S,gpg-sign? a,all \
            i,include interactive p,patch o,only n,no-verify dry-run short branch ahead-behind porcelain \
            long z,null amend no-post-rewrite u,untracked-files? pathspec-from-file= pathspec-file-nul \
            allow-empty allow-empty-message",
    },
    VerbOptions { verb: "commit-graph", options: "object-dir=" },
    VerbOptions { verb: "commit-graph verify", options: "object-dir= shallow progress" },
    VerbOptions {
        verb: "commit-graph write",
        options: "\
            object-dir= reachable stdin-packs stdin-commits append changed-paths split? max-commits= \
            size-multiple= expire-time= max-new-filters= progress",
    },
    VerbOptions { verb: "commit-tree", options: "p= m= F= S,gpg-sign?" },
    VerbOptions {
        verb: "config",
        options: "\
            global system local worktree f,file= blob= get get-all get-regexp get-urlmatch replace-all add \
            unset unset-all rename-section remove-section l,list e,edit get-color get-colorbool t,type= \
            bool int bool-or-int bool-or-str path expiry-date default= comment= fixed-value z,null \
            name-only show-origin show-scope show-names includes",
    },
    VerbOptions { verb: "config edit", options: "global system local worktree f,file= blob=" },
    VerbOptions {
        verb: "config get",
        options: "\
            global system local worktree f,file= blob= all regexp value= fixed-value url= z,null name-only \
            show-origin show-scope show-names t,type= bool int bool-or-int bool-or-str path expiry-date \
            includes default=",
    },
    VerbOptions {
        verb: "config list",
        options: "\
            global system local worktree f,file= blob= z,null name-only show-origin show-scope show-names \
            t,type= bool int bool-or-int bool-or-str path expiry-date includes",
    },
    VerbOptions { verb: "config remove-section", options: "global system local worktree f,file= blob=" },
    VerbOptions { verb: "config rename-section", options: "global system local worktree f,file= blob=" },
    VerbOptions {
        verb: "config set",
        options: "\
            global system local worktree f,file= blob= t,type= bool int bool-or-int bool-or-str path \
            expiry-date all value= fixed-value comment= append",
    },
    VerbOptions {
        verb: "config unset",
        options: "global system local worktree f,file= blob= all value= fixed-value",
    },
    VerbOptions { verb: "count-objects", options: "v,verbose H,human-readable" },
    VerbOptions { verb: "credential", options: "" },
    VerbOptions { verb: "credential approve", options: "" },
    VerbOptions { verb: "credential capability", options: "" },
    VerbOptions { verb: "credential fill", options: "" },
    VerbOptions { verb: "credential reject", options: "" },
    VerbOptions { verb: "credential-cache", options: "timeout= socket=" },
    VerbOptions { verb: "credential-cache erase", options: "timeout= socket=" },
    VerbOptions { verb: "credential-cache exit", options: "timeout= socket=" },
    VerbOptions { verb: "credential-cache get", options: "timeout= socket=" },
    VerbOptions { verb: "credential-cache store", options: "timeout= socket=" },
    VerbOptions { verb: "credential-cache--daemon", options: "debug" },
    VerbOptions { verb: "credential-store", options: "file=" },
    VerbOptions { verb: "credential-store erase", options: "file=" },
    VerbOptions { verb: "credential-store get", options: "file=" },
    VerbOptions { verb: "credential-store store", options: "file=" },
    VerbOptions { verb: "cvsexportcommit", options: "u h P p v c f k a m= d= w= W" },
    VerbOptions { verb: "cvsimport", options: "h a i v m k u o= d= p= r= C= z= s= M= P= A= S= L= R" },
    VerbOptions { verb: "cvsserver", options: "h H V,version base-path= strict-paths export-all" },
    VerbOptions {
        verb: "daemon",
        options: "\
            listen? port? inetd verbose syslog log-destination? export-all access-hook? timeout? \
            init-timeout? max-connections? strict-paths base-path? base-path-relaxed interpolated-path? \
            reuseaddr user-path? pid-file? detach user? group? enable? disable? allow-override? \
            forbid-override? informative-errors no-informative-errors serve",
    },
    VerbOptions {
        verb: "describe",
        options: "\
            contains debug all tags long first-parent abbrev? exact-match candidates= match= exclude= \
            always dirty? broken?",
    },
    VerbOptions { verb: "diagnose", options: "o,output-directory= s,suffix= mode=" },
    VerbOptions {
        verb: "diff",
        options: "cached staged merge-base no-index base ours theirs q 0 1 2 3 @rev @diff",
    },
    VerbOptions { verb: "diff-files", options: "base ours theirs q 0 1 2 3 @rev @diff" },
    VerbOptions { verb: "diff-index", options: "cached merge-base @rev @diff" },
    VerbOptions { verb: "diff-tree", options: "merge-base @rev @diff" },
    VerbOptions {
        verb: "difftool",
        options: "\
            g,gui d,dir-diff y,no-prompt prompt symlinks t,tool= tool-help trust-exit-code x,extcmd= \
            no-index cached staged merge-base base ours theirs @rev @diff",
    },
    VerbOptions { verb: "difftool--helper", options: "" },
    VerbOptions {
        verb: "fast-export",
        options: "\
            progress= signed-tags= tag-of-filtered-object= reencode= export-marks= import-marks= \
            import-marks-if-exists= fake-missing-tagger full-tree use-done-feature no-data refspec= \
            anonymize anonymize-map= reference-excluded-parents show-original-ids mark-tags @rev @diff",
    },
    VerbOptions {
        verb: "fast-import",
        options: "\
            date-format? max-pack-size? big-file-threshold? depth? active-branches? export-pack-edges? \
            import-marks? import-marks-if-exists? export-marks? relative-marks no-relative-marks \
            rewrite-submodules-from? rewrite-submodules-to? cat-blob-fd? quiet stats allow-unsafe-features \
            force done",
    },
    VerbOptions {
        verb: "fetch",
        options: "\
            v,verbose q,quiet all set-upstream a,append atomic upload-pack= f,force m,multiple t,tags n \
            j,jobs= prefetch p,prune P,prune-tags recurse-submodules? dry-run porcelain write-fetch-head \
            k,keep u,update-head-ok progress depth= shallow-since= shallow-exclude= deepen= unshallow \
            refetch submodule-prefix= recurse-submodules-default= update-shallow refmap= o,server-option= \
            4,ipv4 6,ipv6 negotiation-tip= negotiate-only filter= auto-maintenance auto-gc \
            show-forced-updates write-commit-graph stdin",
    },
    VerbOptions {
        verb: "fetch-pack",
        options: "\
            upload-pack? exec? q,quiet k,keep thin include-tag all stdin diag-url v depth? shallow-since? \
            shallow-exclude? deepen-relative no-progress stateless-rpc lock-pack \
            check-self-contained-and-connected cloning update-shallow from-promisor refetch filter?",
    },
    VerbOptions {
        verb: "filter-branch",
        options: "\
            f,force remap-to-ancestor prune-empty d= setup= subdirectory-filter= env-filter= tree-filter= \
            index-filter= parent-filter= msg-filter= commit-filter= tag-name-filter= original= \
            state-branch= @rev @diff",
    },
    VerbOptions { verb: "fmt-merge-msg", options: "log? summary? m,message= into-name= F,file=" },
    VerbOptions {
        verb: "for-each-ref",
        options: "\
            s,shell p,perl python tcl omit-empty count= format= color? exclude= sort= points-at= merged= \
            no-merged= contains= no-contains= ignore-case stdin include-root-refs",
    },
    VerbOptions { verb: "for-each-repo", options: "config= keep-going" },
    VerbOptions {
        verb: "format-patch",
        options: "\
            n,numbered N,no-numbered s,signoff stdout cover-letter numbered-files suffix= start-number= \
            v,reroll-count= filename-max-length= rfc? cover-from-description= description-file= \
            subject-prefix= o,output-directory= k,keep-subject no-binary zero-commit ignore-if-in-upstream \
            p,no-stat add-header= to= cc= from? in-reply-to= attach? inline? thread? signature= base= \
            signature-file= q,quiet progress interdiff= range-diff= creation-factor= force-in-body-from \
            @rev @diff",
    },
    VerbOptions {
        verb: "fsck",
        options: "\
            v,verbose unreachable dangling tags root cache reflogs full connectivity-only strict lost-found \
            progress name-objects",
    },
    VerbOptions {
        verb: "fsck-objects",
        options: "\
            v,verbose unreachable dangling tags root cache reflogs full connectivity-only strict lost-found \
            progress name-objects",
    },
    VerbOptions { verb: "fsmonitor--daemon", options: "detach ipc-threads= start-timeout=" },
    VerbOptions { verb: "fsmonitor--daemon run", options: "detach ipc-threads= start-timeout=" },
    VerbOptions { verb: "fsmonitor--daemon start", options: "detach ipc-threads= start-timeout=" },
    VerbOptions { verb: "fsmonitor--daemon status", options: "detach ipc-threads= start-timeout=" },
    VerbOptions { verb: "fsmonitor--daemon stop", options: "detach ipc-threads= start-timeout=" },
    VerbOptions {
        verb: "gc",
        options: "q,quiet prune? cruft max-cruft-size= aggressive auto detach force keep-largest-pack",
    },
    VerbOptions { verb: "get-tar-commit-id", options: "" },
    VerbOptions {
        verb: "grep",
        options: "\
            cached no-index untracked exclude-standard recurse-submodules v,invert-match i,ignore-case \
            w,word-regexp a,text I textconv r,recursive max-depth= E,extended-regexp G,basic-regexp \
            F,fixed-strings P,perl-regexp n,line-number column h H full-name l,files-with-matches name-only \
            L,files-without-match z,null o,only-matching c,count color? break heading C,context= \
            B,before-context= A,after-context= threads= # p,show-function W,function-context f= e= and or \
            not q,quiet all-match O,open-files-in-pager? ext-grep m,max-count=",
    },
    VerbOptions { verb: "gui", options: "" },
    VerbOptions { verb: "gui blame", options: "line?" },
    VerbOptions { verb: "gui browser", options: "" },
    VerbOptions { verb: "gui citool", options: "amend nocommit" },
    VerbOptions { verb: "gui version", options: "" },
    VerbOptions { verb: "hash-object", options: "t= w stdin stdin-paths no-filters literally path=" },
    VerbOptions {
        verb: "help",
        options: "\
            a,all external-commands aliases exclude-guides m,man w,web i,info v,verbose g,guides \
            user-interfaces developer-interfaces c,config config-for-completion \
            config-sections-for-completion",
    },
    VerbOptions { verb: "hook", options: "" },
    VerbOptions { verb: "hook run", options: "ignore-missing to-stdin=" },
    VerbOptions { verb: "http-backend", options: "" },
    VerbOptions { verb: "http-fetch", options: "t c a v w= h recover stdin packfile? index-pack-args?" },
    VerbOptions { verb: "http-push", options: "all force dry-run helper-status verbose d D h" },
    VerbOptions { verb: "imap-send", options: "v,verbose q,quiet curl" },
    VerbOptions {
        verb: "index-pack",
        options: "\
            stdin fix-thin strict? check-self-contained-and-connected fsck-objects? verify verify-stat \
            verify-stat-only keep? promisor? threads? pack_header? v show-resolving-progress \
            progress-title= report-end-of-input o= index-version? max-input-size? rev-index object-format?",
    },
    VerbOptions {
        verb: "init",
        options: "\
            template= bare shared? q,quiet separate-git-dir= b,initial-branch= object-format= ref-format=",
    },
    VerbOptions {
        verb: "init-db",
        options: "\
            template= bare shared? q,quiet separate-git-dir= b,initial-branch= object-format= ref-format=",
    },
    VerbOptions {
        verb: "instaweb",
        options: "l,local p,port= d,httpd= b,browser= m,module-path= stop start restart",
    },
    VerbOptions {
        verb: "interpret-trailers",
        options: "\
            in-place trim-empty where= if-exists= if-missing= only-trailers only-input unfold parse \
            no-divider trailer=",
    },
    VerbOptions {
        verb: "log",
        options: "\
            q,quiet source use-mailmap mailmap clear-decorations decorate-refs= decorate-refs-exclude= \
            decorate? L= @rev @diff",
    },
    VerbOptions {
        verb: "ls-files",
        options: "\
            z t v f c,cached d,deleted m,modified o,others i,ignored s,stage k,killed directory eol \
            empty-directory u,unmerged resolve-undo x,exclude= X,exclude-from= exclude-per-directory= \
            exclude-standard full-name recurse-submodules error-unmatch with-tree= abbrev? debug \
            deduplicate sparse format=",
    },
    VerbOptions {
        verb: "ls-remote",
        options: "\
            q,quiet upload-pack= exec= t,tags b,branches h,heads refs get-url sort= exit-code symref \
            o,server-option=",
    },
    VerbOptions {
        verb: "ls-tree",
        options: "d r t z l,long name-only name-status object-only full-name full-tree format= abbrev?",
    },
    VerbOptions {
        verb: "mailinfo",
        options: "k b m,message-id u n encoding= scissors quoted-cr= inbody-headers",
    },
    VerbOptions { verb: "mailsplit", options: "d? f? b keep-cr mboxrd o?" },
    VerbOptions { verb: "maintenance", options: "" },
    VerbOptions { verb: "maintenance register", options: "config-file=" },
    VerbOptions { verb: "maintenance run", options: "auto detach schedule= quiet task=" },
    VerbOptions { verb: "maintenance start", options: "scheduler=" },
    VerbOptions { verb: "maintenance stop", options: "" },
    VerbOptions { verb: "maintenance unregister", options: "config-file= f,force" },
    VerbOptions {
        verb: "merge",
        options: "\
            n stat summary log? squash commit e,edit cleanup= ff ff-only rerere-autoupdate \
            verify-signatures s,strategy= X,strategy-option= m,message= F,file= into-name= v,verbose \
            q,quiet abort quit continue allow-unrelated-histories progress S,gpg-sign? autostash \
            overwrite-ignore signoff no-verify",
    },
    VerbOptions { verb: "merge-base", options: "a,all octopus independent is-ancestor fork-point" },
    VerbOptions {
        verb: "merge-file",
        options: "p,stdout object-id diff3 zdiff3 ours theirs union diff-algorithm= marker-size= q,quiet L=",
    },
    VerbOptions { verb: "merge-index", options: "o q a" },
    VerbOptions { verb: "merge-octopus", options: "" },
    VerbOptions { verb: "merge-one-file", options: "" },
    VerbOptions { verb: "merge-ours", options: "" },
    VerbOptions {
        verb: "merge-recursive",
        options: "\
            ours theirs subtree? patience histogram diff-algorithm? ignore-space-change ignore-all-space \
            ignore-space-at-eol ignore-cr-at-eol renormalize no-renormalize no-renames find-renames? \
            rename-threshold?",
    },
    VerbOptions {
        verb: "merge-recursive-ours",
        options: "\
            ours theirs subtree? patience histogram diff-algorithm? ignore-space-change ignore-all-space \
            ignore-space-at-eol ignore-cr-at-eol renormalize no-renormalize no-renames find-renames? \
            rename-threshold?",
    },
    VerbOptions {
        verb: "merge-recursive-theirs",
        options: "\
            ours theirs subtree? patience histogram diff-algorithm? ignore-space-change ignore-all-space \
            ignore-space-at-eol ignore-cr-at-eol renormalize no-renormalize no-renames find-renames? \
            rename-threshold?",
    },
    VerbOptions { verb: "merge-resolve", options: "" },
    VerbOptions {
        verb: "merge-subtree",
        options: "\
            ours theirs subtree? patience histogram diff-algorithm? ignore-space-change ignore-all-space \
            ignore-space-at-eol ignore-cr-at-eol renormalize no-renormalize no-renames find-renames? \
            rename-threshold?",
    },
    VerbOptions {
        verb: "merge-tree",
        options: "\
            write-tree trivial-merge messages z name-only allow-unrelated-histories stdin merge-base= \
            X,strategy-option=",
    },
    VerbOptions { verb: "mergetool", options: "tool-help? t,tool= g,gui y,no-prompt prompt O?" },
    VerbOptions { verb: "mktag", options: "strict" },
    VerbOptions { verb: "mktree", options: "z missing batch" },
    VerbOptions { verb: "multi-pack-index", options: "object-dir=" },
    VerbOptions { verb: "multi-pack-index expire", options: "object-dir= progress" },
    VerbOptions { verb: "multi-pack-index repack", options: "object-dir= batch-size= progress" },
    VerbOptions { verb: "multi-pack-index verify", options: "object-dir= progress" },
    VerbOptions {
        verb: "multi-pack-index write",
        options: "object-dir= preferred-pack= bitmap progress incremental stdin-packs refs-snapshot=",
    },
    VerbOptions { verb: "mv", options: "v,verbose n,dry-run f,force k sparse" },
    VerbOptions {
        verb: "name-rev",
        options: "name-only tags refs= exclude= all stdin annotate-stdin undefined always peel-tag",
    },
    VerbOptions { verb: "notes", options: "ref=" },
    VerbOptions {
        verb: "notes add",
        options: "\
            m,message= F,file= c,reedit-message= C,reuse-message= allow-empty f,force separator? stripspace",
    },
    VerbOptions {
        verb: "notes append",
        options: "m,message= F,file= c,reedit-message= C,reuse-message= allow-empty separator? stripspace",
    },
    VerbOptions { verb: "notes copy", options: "f,force stdin for-rewrite=" },
    VerbOptions {
        verb: "notes edit",
        options: "m,message= F,file= c,reedit-message= C,reuse-message= allow-empty separator? stripspace",
    },
    VerbOptions { verb: "notes get-ref", options: "" },
    VerbOptions { verb: "notes list", options: "" },
    VerbOptions { verb: "notes merge", options: "v,verbose q,quiet s,strategy= commit abort" },
    VerbOptions { verb: "notes prune", options: "n,dry-run v,verbose" },
    VerbOptions { verb: "notes remove", options: "ignore-missing stdin" },
    VerbOptions { verb: "notes show", options: "" },
    VerbOptions { verb: "p4", options: "" },
    VerbOptions { verb: "p4 branches", options: "v,verbose git-dir= h,help" },
    VerbOptions {
        verb: "p4 clone",
        options: "\
            branch= detect-branches changesfile= silent detect-labels import-labels import-local \
            max-changes= changes-block-size= keep-path use-client-spec /= destination= bare v,verbose \
            h,help",
    },
    VerbOptions {
        verb: "p4 commit",
        options: "\
            origin= M preserve-user export-labels n,dry-run prepare-p4-only conflict= branch= shelve \
            update-shelve= commit= disable-rebase disable-p4sync no-verify v,verbose git-dir= h,help",
    },
    VerbOptions { verb: "p4 rebase", options: "import-labels v,verbose git-dir= h,help" },
    VerbOptions {
        verb: "p4 submit",
        options: "\
            origin= M preserve-user export-labels n,dry-run prepare-p4-only conflict= branch= shelve \
            update-shelve= commit= disable-rebase disable-p4sync no-verify v,verbose git-dir= h,help",
    },
    VerbOptions {
        verb: "p4 sync",
        options: "\
            branch= detect-branches changesfile= silent detect-labels import-labels import-local \
            max-changes= changes-block-size= keep-path use-client-spec /= v,verbose git-dir= h,help",
    },
    VerbOptions { verb: "p4 unshelve", options: "origin= v,verbose git-dir= h,help" },
    VerbOptions {
        verb: "pack-objects",
        options: "\
            q,quiet progress all-progress all-progress-implied index-version= max-pack-size= local \
            incremental window= window-memory= depth= reuse-delta reuse-object delta-base-offset threads= \
            non-empty revs unpacked all reflog indexed-objects stdin-packs stdout include-tag \
            keep-unreachable pack-loose-unreachable unpack-unreachable? cruft cruft-expiration? sparse thin \
            shallow honor-pack-keep keep-pack= compression= keep-true-parents use-bitmap-index \
            write-bitmap-index write-bitmap-index-quiet filter= missing= exclude-promisor-objects \
            delta-islands uri-protocol=",
    },
    VerbOptions { verb: "pack-redundant", options: "all verbose alt-odb i-still-use-this" },
    VerbOptions { verb: "pack-refs", options: "all prune auto include= exclude=" },
    VerbOptions { verb: "patch-id", options: "unstable stable verbatim" },
    VerbOptions {
        verb: "pickaxe",
        options: "\
            incremental b root show-stats progress score-debug f,show-name n,show-number p,porcelain \
            line-porcelain c t l s e,show-email w ignore-rev= ignore-revs-file= color-lines color-by-age \
            minimal S= contents= C? M? L= abbrev? @rev @diff",
    },
    VerbOptions { verb: "prune", options: "n,dry-run v,verbose progress expire= exclude-promisor-objects" },
    VerbOptions { verb: "prune-packed", options: "n,dry-run q,quiet" },
    VerbOptions {
        verb: "pull",
        options: "\
            v,verbose q,quiet progress recurse-submodules? r,rebase? n stat summary log? signoff? squash \
            commit edit cleanup= ff ff-only verify verify-signatures autostash s,strategy= \
            X,strategy-option= S,gpg-sign? allow-unrelated-histories all a,append upload-pack= f,force \
            t,tags p,prune j,jobs= dry-run k,keep depth= shallow-since= shallow-exclude= deepen= unshallow \
            update-shallow refmap= o,server-option= 4,ipv4 6,ipv6 negotiation-tip= show-forced-updates \
            set-upstream",
    },
    VerbOptions {
        verb: "push",
        options: "\
            v,verbose q,quiet repo= all branches mirror d,delete tags n,dry-run porcelain f,force \
            force-with-lease? force-if-includes recurse-submodules= thin receive-pack= exec= u,set-upstream \
            progress prune no-verify follow-tags signed? atomic o,push-option= 4,ipv4 6,ipv6",
    },
    VerbOptions { verb: "quiltimport", options: "n,dry-run author= patches= series= keep-non-patch" },
    VerbOptions {
        verb: "range-diff",
        options: "creation-factor= no-dual-color notes? left-only right-only @diff",
    },
    VerbOptions {
        verb: "read-tree",
        options: "\
            super-prefix= index-output= empty v,verbose m trivial aggressive reset prefix= u \
            exclude-per-directory= i n,dry-run no-sparse-checkout debug-unpack recurse-submodules? q,quiet",
    },
    VerbOptions {
        verb: "rebase",
        options: "\
            onto= keep-base no-verify q,quiet v,verbose n,no-stat signoff committer-date-is-author-date \
            reset-author-date ignore-date C= ignore-whitespace whitespace= f,force-rebase no-ff continue \
            skip abort quit edit-todo show-current-patch apply m,merge i,interactive p,preserve-merges \
            rerere-autoupdate empty= k,keep-empty autosquash update-refs S,gpg-sign? autostash x,exec= \
            allow-empty-message r,rebase-merges? fork-point s,strategy= X,strategy-option= root \
            reschedule-failed-exec reapply-cherry-picks",
    },
    VerbOptions {
        verb: "receive-pack",
        options: "q,quiet stateless-rpc http-backend-info-refs advertise-refs reject-thin-pack-for-testing",
    },
    VerbOptions {
        verb: "reflog",
        options: "\
            q,quiet source use-mailmap mailmap clear-decorations decorate-refs= decorate-refs-exclude= \
            decorate? L= @rev @diff",
    },
    VerbOptions { verb: "reflog delete", options: "n,dry-run rewrite updateref verbose" },
    VerbOptions { verb: "reflog exists", options: "" },
    VerbOptions {
        verb: "reflog expire",
        options: "\
            n,dry-run rewrite updateref verbose expire= expire-unreachable= stale-fix all single-worktree",
    },
    VerbOptions { verb: "reflog list", options: "" },
    VerbOptions {
        verb: "reflog show",
        options: "\
            q,quiet source use-mailmap mailmap clear-decorations decorate-refs= decorate-refs-exclude= \
            decorate? L= @rev @diff",
    },
    VerbOptions { verb: "refs", options: "" },
    VerbOptions { verb: "refs migrate", options: "ref-format= dry-run" },
    VerbOptions { verb: "refs verify", options: "verbose strict" },
    VerbOptions { verb: "remote", options: "v,verbose" },
    VerbOptions { verb: "remote add", options: "f,fetch tags t,track= m,master= mirror?" },
    VerbOptions { verb: "remote get-url", options: "push all" },
    VerbOptions { verb: "remote prune", options: "n,dry-run" },
    VerbOptions { verb: "remote remove", options: "" },
    VerbOptions { verb: "remote rename", options: "progress" },
    VerbOptions { verb: "remote rm", options: "" },
    VerbOptions { verb: "remote set-branches", options: "add" },
    VerbOptions { verb: "remote set-head", options: "a,auto d,delete" },
    VerbOptions { verb: "remote set-url", options: "push add delete" },
    VerbOptions { verb: "remote show", options: "n" },
    VerbOptions { verb: "remote update", options: "p,prune" },
    VerbOptions { verb: "remote-ext", options: "" },
    VerbOptions { verb: "remote-fd", options: "" },
    VerbOptions { verb: "remote-ftp", options: "" },
    VerbOptions { verb: "remote-ftps", options: "" },
    VerbOptions { verb: "remote-http", options: "" },
    VerbOptions { verb: "remote-https", options: "" },
    VerbOptions {
        verb: "repack",
        options: "\
            a A cruft cruft-expiration= max-cruft-size= d f F n q,quiet l,local b,write-bitmap-index \
            i,delta-islands unpack-unreachable= k,keep-unreachable window= window-memory= depth= threads= \
            max-pack-size= filter= pack-kept-objects keep-pack= g,geometric= m,write-midx expire-to= \
            filter-to=",
    },
    VerbOptions {
        verb: "replace",
        options: "l,list d,delete e,edit g,graft convert-graft-file f,force raw format=",
    },
    VerbOptions { verb: "replay", options: "advance= onto= contained @rev @diff" },
    VerbOptions { verb: "request-pull", options: "p" },
    VerbOptions { verb: "rerere", options: "rerere-autoupdate" },
    VerbOptions { verb: "rerere clear", options: "rerere-autoupdate" },
    VerbOptions { verb: "rerere diff", options: "rerere-autoupdate" },
    VerbOptions { verb: "rerere forget", options: "rerere-autoupdate" },
    VerbOptions { verb: "rerere gc", options: "rerere-autoupdate" },
    VerbOptions { verb: "rerere remaining", options: "rerere-autoupdate" },
    VerbOptions { verb: "rerere status", options: "rerere-autoupdate" },
    VerbOptions {
        verb: "reset",
        options: "\
            q,quiet no-refresh mixed soft hard merge keep recurse-submodules? p,patch N,intent-to-add \
            pathspec-from-file= pathspec-file-nul",
    },
    VerbOptions {
        verb: "restore",
        options: "\
            s,source= S,staged W,worktree ignore-unmerged overlay q,quiet recurse-submodules? progress \
            m,merge conflict= 2,ours 3,theirs p,patch ignore-skip-worktree-bits pathspec-from-file= \
            pathspec-file-nul",
    },
    VerbOptions {
        verb: "rev-list",
        options: "\
            header timestamp bisect-vars bisect-all test-bitmap use-bitmap-index progress? \
            filter-print-omitted filter-provided-objects exclude-promisor-objects missing? object-names \
            commit-header disk-usage? @rev @diff",
    },
    VerbOptions {
        verb: "rev-parse",
        options: "\
            parseopt keep-dashdash stop-at-non-option stuck-long sq-quote local-env-vars resolve-git-dir= \
            git-path= default= prefix= revs-only no-revs flags no-flags verify q,quiet short? sq not \
            symbolic symbolic-full-name abbrev-ref? all branches? tags? remotes? glob? exclude? \
            exclude-hidden? bisect disambiguate? since? after? until? before? show-toplevel \
            show-superproject-working-tree show-prefix show-cdup git-dir absolute-git-dir git-common-dir \
            path-format? is-inside-git-dir is-inside-work-tree is-bare-repository is-shallow-repository \
            shared-index-path show-object-format? show-ref-format",
    },
    VerbOptions {
        verb: "revert",
        options: "\
            quit continue abort skip cleanup= n,no-commit e,edit r s,signoff m,mainline= rerere-autoupdate \
            strategy= X,strategy-option= S,gpg-sign? reference @rev @diff",
    },
    VerbOptions {
        verb: "rm",
        options: "\
            n,dry-run q,quiet cached f,force r ignore-unmatch sparse pathspec-from-file= pathspec-file-nul",
    },
    VerbOptions {
        verb: "send-email",
        options: "\
            identity= no-identity dump-aliases translate-aliases sender= from= in-reply-to= reply-to= \
            subject= to= to-cmd= no-to cc= no-cc bcc= no-bcc chain-reply-to sendmail-cmd= smtp-server= \
            smtp-server-option= smtp-server-port= smtp-user= smtp-pass= smtp-ssl smtp-encryption= \
            smtp-ssl-cert-path= smtp-debug? smtp-domain= smtp-auth= no-smtp-auth annotate compose quiet \
            cc-cmd= header-cmd= no-header-cmd suppress-from suppress-cc= signed-off-cc signed-off-by-cc \
            cc-cover to-cover confirm= dry-run envelope-sender= thread validate transfer-encoding= mailmap \
            use-mailmap format-patch 8bit-encoding= compose-encoding= force xmailer batch-size= \
            relogin-delay= git-completion-helper v= n,numbered N,no-numbered s,signoff stdout cover-letter \
            numbered-files suffix= start-number= filename-max-length= rfc? cover-from-description= \
            description-file= subject-prefix= o,output-directory= k,keep-subject no-binary zero-commit \
            ignore-if-in-upstream p,no-stat add-header= attach? inline? signature= base= signature-file= \
            progress interdiff= range-diff= creation-factor= force-in-body-from reroll-count= @rev @diff",
    },
    VerbOptions {
        verb: "send-pack",
        options: "\
            v,verbose q,quiet receive-pack= exec= remote= all n,dry-run mirror f,force signed? push-option= \
            progress thin atomic stateless-rpc stdin helper-status force-with-lease? force-if-includes",
    },
    VerbOptions { verb: "sh-i18n--envsubst", options: "h,help V,version v,variables" },
    VerbOptions { verb: "shell", options: "c=" },
    VerbOptions {
        verb: "shortlog",
        options: "c,committer n,numbered s,summary e,email w? group= @rev @diff",
    },
    VerbOptions {
        verb: "show",
        options: "\
            q,quiet source use-mailmap mailmap clear-decorations decorate-refs= decorate-refs-exclude= \
            decorate? L= @rev @diff",
    },
    VerbOptions {
        verb: "show-branch",
        options: "\
            a,all r,remotes color? more? list no-name current sha1-name merge-base independent topo-order \
            topics sparse date-order g,reflog?",
    },
    VerbOptions { verb: "show-index", options: "object-format=" },
    VerbOptions {
        verb: "show-ref",
        options: "\
            tags branches heads exists verify h head d,dereference s,hash? abbrev? q,quiet \
            exclude-existing?",
    },
    VerbOptions { verb: "sparse-checkout", options: "" },
    VerbOptions { verb: "sparse-checkout add", options: "skip-checks stdin" },
    VerbOptions { verb: "sparse-checkout check-rules", options: "z cone rules-file=" },
    VerbOptions { verb: "sparse-checkout disable", options: "" },
    VerbOptions { verb: "sparse-checkout init", options: "cone sparse-index" },
    VerbOptions { verb: "sparse-checkout list", options: "" },
    VerbOptions { verb: "sparse-checkout reapply", options: "cone sparse-index" },
    VerbOptions { verb: "sparse-checkout set", options: "cone sparse-index skip-checks stdin" },
    VerbOptions {
        verb: "stage",
        options: "\
            n,dry-run v,verbose i,interactive p,patch e,edit f,force u,update renormalize N,intent-to-add \
            A,all ignore-removal refresh ignore-errors ignore-missing sparse chmod= warn-embedded-repo \
            pathspec-from-file= pathspec-file-nul",
    },
    VerbOptions {
        verb: "stash",
        options: "\
            k,keep-index S,staged p,patch q,quiet u,include-untracked a,all m,message= pathspec-from-file= \
            pathspec-file-nul",
    },
    VerbOptions { verb: "stash apply", options: "q,quiet index" },
    VerbOptions { verb: "stash branch", options: "" },
    VerbOptions { verb: "stash clear", options: "" },
    VerbOptions { verb: "stash create", options: "" },
    VerbOptions { verb: "stash drop", options: "q,quiet" },
    VerbOptions {
        verb: "stash list",
        options: "\
            q,quiet source use-mailmap mailmap clear-decorations decorate-refs= decorate-refs-exclude= \
            decorate? L= @rev @diff",
    },
    VerbOptions { verb: "stash pop", options: "q,quiet index" },
    VerbOptions {
        verb: "stash push",
        options: "\
            k,keep-index S,staged p,patch q,quiet u,include-untracked a,all m,message= pathspec-from-file= \
            pathspec-file-nul",
    },
    VerbOptions {
        verb: "stash save",
        options: "k,keep-index S,staged p,patch q,quiet u,include-untracked a,all m,message=",
    },
    VerbOptions { verb: "stash show", options: "u,include-untracked only-untracked @rev @diff" },
    VerbOptions { verb: "stash store", options: "q,quiet m,message=" },
    VerbOptions {
        verb: "status",
        options: "\
            v,verbose s,short b,branch show-stash ahead-behind porcelain? long z,null u,untracked-files? \
            ignored? ignore-submodules? column? no-renames M,find-renames?",
    },
    VerbOptions { verb: "stripspace", options: "s,strip-comments c,comment-lines" },
    VerbOptions { verb: "submodule", options: "q,quiet cached" },
    VerbOptions { verb: "submodule absorbgitdirs", options: "super-prefix=" },
    VerbOptions {
        verb: "submodule add",
        options: "b,branch= f,force q,quiet progress reference= ref-format= dissociate name= depth=",
    },
    VerbOptions { verb: "submodule deinit", options: "f,force q,quiet all" },
    VerbOptions { verb: "submodule foreach", options: "q,quiet recursive" },
    VerbOptions { verb: "submodule init", options: "q,quiet" },
    VerbOptions { verb: "submodule set-branch", options: "q,quiet d,default b,branch=" },
    VerbOptions { verb: "submodule set-url", options: "q,quiet" },
    VerbOptions { verb: "submodule status", options: "q,quiet cached recursive" },
    VerbOptions { verb: "submodule summary", options: "cached files for-status n,summary-limit=" },
    VerbOptions { verb: "submodule sync", options: "q,quiet recursive" },
    VerbOptions {
        verb: "submodule update",
        options: "\
            q,quiet v,verbose progress i,init require-init remote N,no-fetch f,force r,rebase ref-format= \
            reference= dissociate m,merge recursive checkout recommend-shallow no-recommend-shallow depth= \
            j,jobs= single-branch no-single-branch filter=",
    },
    VerbOptions { verb: "submodule--helper", options: "" },
    VerbOptions { verb: "submodule--helper absorbgitdirs", options: "super-prefix=" },
    VerbOptions {
        verb: "submodule--helper add",
        options: "b,branch= f,force q,quiet progress reference= ref-format= dissociate name= depth=",
    },
    VerbOptions {
        verb: "submodule--helper clone",
        options: "\
            prefix= path= name= url= reference= ref-format= dissociate depth= q,quiet progress require-init \
            single-branch filter=",
    },
    VerbOptions {
        verb: "submodule--helper create-branch",
        options: "q,quiet f,force create-reflog t,track? n,dry-run",
    },
    VerbOptions { verb: "submodule--helper deinit", options: "q,quiet f,force all" },
    VerbOptions { verb: "submodule--helper foreach", options: "super-prefix= q,quiet recursive" },
    VerbOptions { verb: "submodule--helper init", options: "q,quiet" },
    VerbOptions { verb: "submodule--helper push-check", options: "" },
    VerbOptions { verb: "submodule--helper set-branch", options: "q,quiet d,default b,branch=" },
    VerbOptions { verb: "submodule--helper set-url", options: "q,quiet" },
    VerbOptions { verb: "submodule--helper status", options: "super-prefix= q,quiet cached recursive" },
    VerbOptions { verb: "submodule--helper summary", options: "cached files for-status n,summary-limit=" },
    VerbOptions { verb: "submodule--helper sync", options: "super-prefix= q,quiet recursive" },
    VerbOptions {
        verb: "submodule--helper update",
        options: "\
            super-prefix= f,force init remote recursive N,no-fetch checkout m,merge r,rebase reference= \
            ref-format= dissociate depth= j,jobs= recommend-shallow q,quiet progress require-init \
            single-branch filter=",
    },
    VerbOptions {
        verb: "subtree",
        options: "h,help q d P,prefix= annotate= b,branch= ignore-joins onto= rejoin squash m,message=",
    },
    VerbOptions {
        verb: "subtree add",
        options: "h,help q d P,prefix= annotate= b,branch= ignore-joins onto= rejoin squash m,message=",
    },
    VerbOptions {
        verb: "subtree merge",
        options: "h,help q d P,prefix= annotate= b,branch= ignore-joins onto= rejoin squash m,message=",
    },
    VerbOptions {
        verb: "subtree pull",
        options: "h,help q d P,prefix= annotate= b,branch= ignore-joins onto= rejoin squash m,message=",
    },
    VerbOptions {
        verb: "subtree push",
        options: "h,help q d P,prefix= annotate= b,branch= ignore-joins onto= rejoin squash m,message=",
    },
    VerbOptions {
        verb: "subtree split",
        options: "h,help q d P,prefix= annotate= b,branch= ignore-joins onto= rejoin squash m,message=",
    },
    VerbOptions { verb: "svn", options: "h H V,version minimize-connections i,id= R,svn-remote= remote=" },
    VerbOptions {
        verb: "svn blame",
        options: "\
            git-format h H V,version minimize-connections i,id= R,svn-remote= remote= incremental b root \
            show-stats progress score-debug f,show-name n,show-number p,porcelain line-porcelain c t l s \
            e,show-email w ignore-rev= ignore-revs-file= color-lines color-by-age minimal S= contents= C? \
            M? L= abbrev? @rev @diff",
    },
    VerbOptions {
        verb: "svn branch",
        options: "\
            m,message= d,destination= n,dry-run parents t,tag username= commit-url= h H V,version \
            minimize-connections i,id= R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn clone",
        options: "\
            r,revision= preserve-empty-dirs placeholder-filename= follow-parent follow A,authors-file= \
            authors-prog= repack? noMetadata useSvmProps useSvnsyncProps log-window-size= no-checkout \
            q,quiet repack-flags= repack-args= repack-opts= use-log-author add-author-from localtime \
            username= config-dir= no-auth-cache ignore-paths= include-paths= ignore-refs= template= shared= \
            T,trunk= t,tags= b,branches= prefix= s,stdlayout m,minimize-url no-metadata use-svm-props \
            use-svnsync-props rewrite-root= rewrite-uuid= h H V,version minimize-connections i,id= \
            R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn commit-diff",
        options: "\
            m,message= F,file= r,revision= e,edit rmdir find-copies-harder l= C,copy-similarity= h H \
            V,version minimize-connections i,id= R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn create-ignore",
        options: "r,revision= h H V,version minimize-connections i,id= R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn dcommit",
        options: "\
            m,merge M s,strategy= v,verbose n,dry-run fetch-all all commit-url= set-svn-props= r,revision= \
            no-rebase mergeinfo= i,interactive e,edit rmdir find-copies-harder l= C,copy-similarity= \
            follow-parent follow A,authors-file= authors-prog= repack? noMetadata useSvmProps \
            useSvnsyncProps log-window-size= no-checkout q,quiet repack-flags= repack-args= repack-opts= \
            use-log-author add-author-from localtime username= config-dir= no-auth-cache ignore-paths= \
            include-paths= ignore-refs= h H V,version minimize-connections id= R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn fetch",
        options: "\
            r,revision= fetch-all all p,parent follow-parent follow A,authors-file= authors-prog= repack? \
            noMetadata useSvmProps useSvnsyncProps log-window-size= no-checkout q,quiet repack-flags= \
            repack-args= repack-opts= use-log-author add-author-from localtime username= config-dir= \
            no-auth-cache ignore-paths= include-paths= ignore-refs= h H V,version minimize-connections \
            i,id= R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn find-rev",
        options: "B,before A,after h H V,version minimize-connections i,id= R,svn-remote= remote=",
    },
    VerbOptions { verb: "svn gc", options: "h H V,version minimize-connections i,id= R,svn-remote= remote=" },
    VerbOptions {
        verb: "svn info",
        options: "url h H V,version minimize-connections i,id= R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn init",
        options: "\
            template= shared= T,trunk= t,tags= b,branches= prefix= s,stdlayout m,minimize-url no-metadata \
            use-svm-props use-svnsync-props rewrite-root= rewrite-uuid= username= config-dir= no-auth-cache \
            ignore-paths= include-paths= ignore-refs= h H V,version minimize-connections i,id= \
            R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn log",
        options: "\
            limit= r,revision= v,verbose incremental oneline show-commit non-recursive A,authors-file= \
            color pager= h H V,version minimize-connections i,id= R,svn-remote= remote= @rev @diff",
    },
    VerbOptions {
        verb: "svn migrate",
        options: "\
            minimize username= config-dir= no-auth-cache ignore-paths= include-paths= ignore-refs= h H \
            V,version minimize-connections i,id= R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn mkdirs",
        options: "r,revision= h H V,version minimize-connections i,id= R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn multi-fetch",
        options: "\
            r,revision= follow-parent follow A,authors-file= authors-prog= repack? noMetadata useSvmProps \
            useSvnsyncProps log-window-size= no-checkout q,quiet repack-flags= repack-args= repack-opts= \
            use-log-author add-author-from localtime username= config-dir= no-auth-cache ignore-paths= \
            include-paths= ignore-refs= h H V,version minimize-connections i,id= R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn multi-init",
        options: "\
            template= shared= T,trunk= t,tags= b,branches= prefix= s,stdlayout m,minimize-url no-metadata \
            use-svm-props use-svnsync-props rewrite-root= rewrite-uuid= username= config-dir= no-auth-cache \
            ignore-paths= include-paths= ignore-refs= h H V,version minimize-connections i,id= \
            R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn propget",
        options: "r,revision= h H V,version minimize-connections i,id= R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn proplist",
        options: "r,revision= h H V,version minimize-connections i,id= R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn propset",
        options: "h H V,version minimize-connections i,id= R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn rebase",
        options: "\
            m,merge M v,verbose s,strategy= l,local fetch-all all n,dry-run p,rebase-merges follow-parent \
            follow A,authors-file= authors-prog= repack? noMetadata useSvmProps useSvnsyncProps \
            log-window-size= no-checkout q,quiet repack-flags= repack-args= repack-opts= use-log-author \
            add-author-from localtime username= config-dir= no-auth-cache ignore-paths= include-paths= \
            ignore-refs= h H V,version minimize-connections i,id= R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn reset",
        options: "r,revision= p,parent h H V,version minimize-connections i,id= R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn set-tree",
        options: "\
            stdin e,edit rmdir find-copies-harder l= C,copy-similarity= follow-parent follow \
            A,authors-file= authors-prog= repack? noMetadata useSvmProps useSvnsyncProps log-window-size= \
            no-checkout q,quiet repack-flags= repack-args= repack-opts= use-log-author add-author-from \
            localtime username= config-dir= no-auth-cache ignore-paths= include-paths= ignore-refs= h H \
            V,version minimize-connections i,id= R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn show-externals",
        options: "r,revision= h H V,version minimize-connections i,id= R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn show-ignore",
        options: "r,revision= h H V,version minimize-connections i,id= R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "svn tag",
        options: "\
            m,message= d,destination= n,dry-run parents username= commit-url= h H V,version \
            minimize-connections i,id= R,svn-remote= remote=",
    },
    VerbOptions {
        verb: "switch",
        options: "\
            c,create= C,force-create= guess discard-changes q,quiet recurse-submodules? progress m,merge \
            conflict= d,detach t,track? f,force orphan= overwrite-ignore ignore-other-worktrees",
    },
    VerbOptions { verb: "symbolic-ref", options: "q,quiet d,delete short recurse m=" },
    VerbOptions {
        verb: "tag",
        options: "\
            l,list n? d,delete v,verify a,annotate m,message= F,file= trailer= e,edit s,sign cleanup= \
            u,local-user= f,force create-reflog column? contains= no-contains= with= without= merged= \
            no-merged= omit-empty sort= points-at= format= color? i,ignore-case",
    },
    VerbOptions { verb: "unpack-file", options: "" },
    VerbOptions { verb: "unpack-objects", options: "n q r strict pack_header? max-input-size?" },
    VerbOptions {
        verb: "update-index",
        options: "\
            q ignore-submodules add replace remove unmerged refresh really-refresh cacheinfo= chmod= \
            assume-unchanged no-assume-unchanged skip-worktree no-skip-worktree \
            ignore-skip-worktree-entries info-only force-remove z stdin index-info unresolve g,again \
            ignore-missing verbose clear-resolve-undo index-version= show-index-version split-index \
            untracked-cache test-untracked-cache force-untracked-cache force-write-index fsmonitor \
            fsmonitor-valid no-fsmonitor-valid",
    },
    VerbOptions { verb: "update-ref", options: "m= d no-deref z stdin create-reflog" },
    VerbOptions { verb: "update-server-info", options: "f,force" },
    VerbOptions { verb: "upload-archive", options: "" },
    VerbOptions { verb: "upload-archive--writer", options: "" },
    VerbOptions {
        verb: "upload-pack",
        options: "stateless-rpc http-backend-info-refs advertise-refs strict timeout=",
    },
    VerbOptions { verb: "var", options: "l" },
    VerbOptions { verb: "verify-commit", options: "v,verbose raw" },
    VerbOptions { verb: "verify-pack", options: "v,verbose s,stat-only object-format=" },
    VerbOptions { verb: "verify-tag", options: "v,verbose raw format=" },
    VerbOptions { verb: "version", options: "build-options" },
    VerbOptions { verb: "web--browse", options: "b,browser= t,tool= c,config=" },
    VerbOptions {
        verb: "whatchanged",
        options: "\
            q,quiet source use-mailmap mailmap clear-decorations decorate-refs= decorate-refs-exclude= \
            decorate? L= @rev @diff",
    },
    VerbOptions { verb: "worktree", options: "" },
    VerbOptions {
        verb: "worktree add",
        options: "f,force b= B= orphan d,detach checkout lock reason= q,quiet track guess-remote",
    },
    VerbOptions { verb: "worktree list", options: "porcelain v,verbose expire= z" },
    VerbOptions { verb: "worktree lock", options: "reason=" },
    VerbOptions { verb: "worktree move", options: "f,force" },
    VerbOptions { verb: "worktree prune", options: "n,dry-run v,verbose expire=" },
    VerbOptions { verb: "worktree remove", options: "f,force" },
    VerbOptions { verb: "worktree repair", options: "" },
    VerbOptions { verb: "worktree unlock", options: "" },
    VerbOptions { verb: "write-tree", options: "missing-ok prefix= ignore-cache-tree" },
];
