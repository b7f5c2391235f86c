package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// server returns a client of a fake API server. The function answers gets the number of calls of
// /readyz so far. Its result ok is true if the server answers; boot and ready are the boot ID and
// the condition Ready of the node.
func server(t *testing.T, answers func(call int) (ok bool, boot string, ready core.ConditionStatus)) kubernetes.Interface {
	t.Helper()
	call := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			call++
		}
		ok, boot, ready := answers(call)
		switch {
		case !ok:
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path != "/readyz":
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(core.Node{Status: core.NodeStatus{
				NodeInfo: core.NodeSystemInfo{BootID: boot}, Conditions: []core.NodeCondition{{Type: core.NodeReady, Status: ready}},
			}}); err != nil {
				t.Error(err)
			}
		}
	}))
	t.Cleanup(s.Close)
	return kubernetes.NewForConfigOrDie(&rest.Config{Host: s.URL, QPS: -1})
}

func TestObserve(t *testing.T) {
	kube := server(t, func(call int) (bool, string, core.ConditionStatus) {
		switch {
		case call == 1:
			return true, "one", core.ConditionTrue
		case call < 5:
			return false, "", ""
		case call == 5:
			return true, "two", core.ConditionFalse
		}
		return true, "two", core.ConditionTrue
	})
	began := time.Now()
	seen, err := observe(t.Context(), kube, "one")
	if err != nil || seen.boot != "two" {
		t.Fatalf("%+v, %v", seen, err)
	}
	if total := time.Since(began); seen.away < 4*retryPause || seen.away > total-retryPause {
		t.Errorf("the API was away for %v of %v; want the time from the first successful answer to the second, at least four pauses", seen.away, total)
	}
}

func TestObserveEnds(t *testing.T) {
	kube := server(t, func(int) (bool, string, core.ConditionStatus) { return false, "", "" })
	enough := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 3*retryPause, enough)
	defer cancel()
	if _, err := observe(ctx, kube, ""); !errors.Is(err, enough) {
		t.Error(err)
	}
}

func TestUpgradeFigures(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(100, 0).Add(time.Duration(s * float64(time.Second))) }
	run := machineRun{}
	run.upgradeFigures = newUpgradeFigures(at(0), at(30), at(65), at(70.5), 40*time.Second, 600<<20, 100<<20)
	var out strings.Builder
	printReport(&out, report{figures: medians([]*figures{&run.figures}), Runs: []machineRun{run}})
	for _, line := range []string{"request → committed, s +70.5", "request → reset, s +30.0", "reset → node Ready, s +35.0", "API away, s +40.0", "disk, MiB +600.0", "bundle, MiB +100.0"} {
		words := strings.Split(line, " +")
		found := false
		for l := range strings.Lines(out.String()) {
			found = found || strings.Contains(l, words[0]) && strings.Contains(l, " "+words[1])
		}
		if !found {
			t.Errorf("no line with %s and %s in:\n%s", words[0], words[1], out.String())
		}
	}
}
