// Package exporter serves metrics of a process of the orchestrator to metricsd, on the socket that
// the process inherits (pkg/service/exposition). These are the metrics of etcd, of the scheduler,
// of the other controllers and of the controller manager, and also those that containerd serves on
// loopback. The API server and the kubelet serve their own metrics at their ports.
//
// The process "node" also checks the tokens of the callers of metricsd, with the identity of the
// kubelet: TokenReview and SubjectAccessReview. metricsd stores the answers.
package exporter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/service/exposition"
)

// Run serves the metrics of a process in the background, if it has inherited a socket.
func Run(process string, dirs dirs.Dirs) error {
	listener, err := exposition.Inherited()
	if err != nil || listener == nil {
		return err
	}
	go serve(listener, Handler(process, dirs))
	return nil
}

// RunControllerManager serves the metrics of the controller manager in the background. The
// controller manager runs in a child of the process "controllers", and that process passes the
// metrics on. If RunControllerManager fails, the controller manager runs without metrics.
func RunControllerManager(dirs dirs.Dirs) {
	var listener net.Listener
	socket, err := safefile.Listen(controllerManagerSocket(dirs), 0, 0o700)
	if err == nil {
		listener, err = exposition.Listener(socket)
	}
	if err != nil {
		klog.ErrorS(err, "The process continues without metrics")
		return
	}
	mux := http.NewServeMux()
	mux.Handle(nodespec.MetricsOfControllerManager, gather(legacyregistry.DefaultGatherer, everything))
	go serve(listener, mux)
}

// controllerManagerSocket is a socket in the directory of the process "controllers", which only the
// user of that process can enter.
func controllerManagerSocket(dirs dirs.Dirs) string {
	return filepath.Join(dirs.Controllers, "manager.sock")
}

func serve(l net.Listener, h http.Handler) {
	klog.ErrorS(exposition.Serve(l, h), "The process continues without metrics") // ended
}

// Handler returns the handler of a process.
func Handler(process string, dirs dirs.Dirs) http.Handler {
	mux := http.NewServeMux()
	switch process {
	case component.API:
		// etcd uses the registry of the library, the API server that of Kubernetes.
		mux.Handle(nodespec.MetricsOfEtcd, gather(prometheus.DefaultGatherer, everything))
	case component.Controllers:
		// All components of the process share a registry, so the names select the metrics.
		ofScheduler := func(name string) bool { return strings.HasPrefix(name, "scheduler_") }
		mux.Handle(nodespec.MetricsOfScheduler, gather(legacyregistry.DefaultGatherer, ofScheduler))
		mux.Handle(nodespec.MetricsOfControllers, gather(legacyregistry.DefaultGatherer, func(name string) bool { return !ofScheduler(name) }))
		mux.Handle(nodespec.MetricsOfControllerManager, relay(exposition.Client(controllerManagerSocket(dirs)), "http://process"+nodespec.MetricsOfControllerManager))
	case component.Node:
		mux.Handle(nodespec.MetricsOfContainerd, relay(&http.Client{Transport: &http.Transport{IdleConnTimeout: time.Minute}}, fmt.Sprintf("http://127.0.0.1:%d/v1/metrics", paths.PortContainerd)))
		mux.Handle(nodespec.AuthorizeMetrics, &authorizer{connect: connector(dirs)})
	}
	return mux
}

func everything(string) bool { return true }

// gather answers with the metrics of a registry that selected selects by name. A metric that cannot
// be gathered is missing, and the log contains the reason.
func gather(from prometheus.Gatherer, selected func(name string) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		families, err := from.Gather()
		if err != nil {
			klog.ErrorS(err, "Some metrics are missing")
		}
		families = slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return !selected(f.GetName()) })
		var text bytes.Buffer
		for _, f := range families {
			if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		w.Header().Set("Content-Type", exposition.ContentType)
		_, _ = w.Write(text.Bytes()) // fails if metricsd has disconnected
	})
}

// relay answers with the metrics at a URL of this machine.
func relay(client *http.Client, url string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := fetch(r.Context(), client, url)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		w.Header().Set("Content-Type", exposition.ContentType)
		_, _ = w.Write(text) // fails if metricsd has disconnected
	})
}

const (
	fetchTimeout = 10 * time.Second // metricsd has the same timeout
	maxText      = 16 << 20         // bytes of the metrics of another process
)

func fetch(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("its metrics are not reachable: %w", errors.Unwrap(err))
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxText+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("its metrics are incomplete: %w", err)
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("its metrics are not available: %s", response.Status)
	case len(text) > maxText:
		return nil, fmt.Errorf("its metrics have more than %d bytes", maxText)
	}
	return text, nil
}
