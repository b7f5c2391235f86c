package health

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

type said struct {
	ready  bool
	detail string
}

func TestWatchAnnouncesTheFirstGoodAnswer(t *testing.T) {
	var healthy atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !healthy.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			w.Write([]byte("[+]ping ok\n[-]poststarthook/x failed: reason withheld\n"))
		}
	}))
	defer server.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	heard := make(chan said, 10)
	go Check{Component: "x", URL: server.URL}.Watch(ctx, func(_ string, ready bool, detail string) { heard <- said{ready, detail} })
	select {
	case s := <-heard:
		t.Fatalf("announced %+v while it starts", s)
	case <-time.After(3 * starting):
	}
	healthy.Store(true)
	if s := <-heard; !s.ready {
		t.Fatalf("announced %+v, want ready", s)
	}
}

func TestAsk(t *testing.T) {
	body := "[+]ping ok\n[-]etcd failed: reason withheld\n[-]later failed\n"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		w.Write([]byte(body))
	}))
	check := Check{Component: "x", URL: server.URL}
	want := "500 Internal Server Error: etcd failed: reason withheld"
	if got := check.ask(context.Background(), http.DefaultClient); got != want {
		t.Errorf("problem %q, want %q", got, want)
	}
	server.Close()
	if got := check.ask(context.Background(), http.DefaultClient); got == "" {
		t.Error("a component that does not listen is healthy")
	}
}
