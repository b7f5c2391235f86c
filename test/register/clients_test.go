package register

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"path"
	"sync"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/orlop-os/orlop/vm"
)

// server returns a client of a fake API server. The parameter failures is the number of failed
// reads of each register before the first successful read.
func server(t *testing.T, failures int) kubernetes.Interface {
	t.Helper()
	var mu sync.Mutex
	asked := map[string]int{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		name := path.Base(r.URL.Path)
		if asked[name]++; asked[name] <= failures {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(core.ConfigMap{
			TypeMeta: meta.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, ObjectMeta: meta.ObjectMeta{Name: name}, Data: map[string]string{field: "last"},
		}); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return kubernetes.NewForConfigOrDie(&rest.Config{Host: s.URL, QPS: -1})
}

// TestReadAll checks that ReadAll reads each register from each API server, and repeats failed
// reads. If the context ends before a read succeeds, ReadAll returns the cause of the context.
func TestReadAll(t *testing.T) {
	r := NewRecord(vm.Clock{})
	r.round.Store(1)
	if err := r.ReadAll(t.Context(), []kubernetes.Interface{server(t, 0), server(t, 1)}, 4); err != nil {
		t.Fatal(err)
	}
	last := map[int]int{}
	for _, o := range r.Operations() {
		if o.Answer == Done && o.Value == "last" {
			last[o.Client]++
		}
	}
	if len(last) != 2 || last[4] != 2*perRound || last[5] != 2*perRound {
		t.Errorf("the number of read registers by client is %v, want all registers for the clients 4 and 5", last)
	}
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(enough)
	if err := r.ReadAll(ctx, []kubernetes.Interface{server(t, 0), server(t, 1)}, 6); !errors.Is(err, enough) {
		t.Errorf("ReadAll with an ended context and a failed read returns %v", err)
	}
}
