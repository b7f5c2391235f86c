package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/test/register"
)

const (
	// historyClients is the number of clients that write to the registers and read them.
	historyClients = 4
	// searchTimeout is the deadline of the check for linearizability.
	searchTimeout = 5 * time.Minute
)

// history holds the record of the clients that use registers of the cluster, and its goroutines.
type history struct {
	record  *register.Record
	servers []kubernetes.Interface
	cancel  context.CancelFunc
	done    chan struct{}
}

func (h *history) stop() { h.cancel(); <-h.done }

// historyVerb runs clients of registers against the API servers of the named machines. The verb
// stop reads each register from each API server, and checks that the history is linearizable. The
// verb next gives the clients new registers. A story uses the verb next before each operation that
// interrupts answers, because the check takes longer with more unanswered writes of a register.
func (s *story) historyVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, -1, "history start MACHINE…, history next, history stop")
	switch {
	case args[0] == "start" && len(args) > 1 && s.history == nil:
		s.startHistory(ts, args[1:])
	case args[0] == "next" && len(args) == 1 && s.history != nil:
		ts.Check(s.history.record.NextRound(context.Background(), s.history.servers))
	case args[0] == "stop" && len(args) == 1 && s.history != nil:
		h := s.history
		s.history = nil
		h.stop()
		ts.Check(h.record.ReadAll(context.Background(), h.servers, historyClients))
		s.judgeHistory(ts, h.record.Operations())
	default:
		ts.Fatalf("history: start MACHINE… once, then next, then stop")
	}
}

func (s *story) startHistory(ts *testscript.TestScript, machines []string) {
	var addresses []string
	for _, name := range machines {
		addresses = append(addresses, "127.0.0.1:"+ts.Getenv("PORT_"+name+"_6443"))
	}
	clock := s.network.Clock()
	servers, err := register.Clients(ts.Getenv("KUBECONFIG"), addresses, clock)
	ts.Check(err)
	h := &history{record: register.NewRecord(clock), servers: servers, done: make(chan struct{})}
	ts.Check(h.record.NextRound(context.Background(), servers))
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel = cancel
	go func() {
		defer close(h.done)
		h.record.Run(ctx, servers, historyClients, uint64(s.began.UnixNano()))
	}()
	s.history = h
}

func (s *story) judgeHistory(ts *testscript.TestScript, operations []register.Operation) {
	writes := 0
	for _, o := range operations {
		if o.Kind != register.Read && o.Answer == register.Done {
			writes++
		}
	}
	if writes == 0 {
		ts.Fatalf("history: no write was acknowledged in %d operations", len(operations))
	}
	verdict, picture := register.Judge(operations, searchTimeout)
	s.note("history: %d operations, %d acknowledged writes: %s; longest time without an answer: %.1fs",
		len(operations), writes, verdict, register.Silence(operations).Seconds())
	if verdict == register.Linearizable {
		return
	}
	page := filepath.Join(filepath.Dir(*imageDir), fmt.Sprintf("history-%d.html", s.began.Unix()))
	if err := picture.Write(page); err != nil {
		ts.Logf("%v", err)
	}
	ts.Fatalf("the history is %s: see %s", verdict, page)
}
