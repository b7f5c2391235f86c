package kubeapiserver

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/util/responsewriter"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	openapi "k8s.io/kube-openapi/pkg/common"

	"github.com/orlop-os/orlop/pkg/backoff"
)

// The paths of OpenAPI documents, as upstream serves them.
const (
	openAPIPrefix = "/openapi/"
	openAPIV2     = "/openapi/v2"
	openAPIV3     = "/openapi/v3"
)

// documents are the OpenAPI documents of Kubernetes' own API groups. Only interactive tools read
// them (kubectl apply and explain). Upstream builds them before it serves the first request, which
// takes a fifth of the server's start and some 30 MiB. This package builds them at the first
// request of a client, or some time after the start. Upstream still builds the documents of custom
// resources and aggregated APIs, and merges all documents.
//
// The server itself requests the list of documents every five seconds for mutating admission
// policies (upstream's patch.typeConverterManager). This request does not start the build; a policy
// in the cluster does (watchPolicies).
type documents struct {
	v2 *openapi.Config
	v3 *openapi.OpenAPIV3Config

	requested atomic.Bool
	make      sync.Once
	build     func() http.Handler // builds the documents and returns their handler
	served    http.Handler        // the handler, set by make
	complete  atomic.Bool         // the aggregator has all documents

	aggregator http.Handler
}

// The server builds the documents before the first client requests them. Otherwise the client that
// applies the first object would wait for the build, which takes half a minute on a slow processor,
// and some clients give up. The build begins after the start is complete, and has a lower priority
// than the server's requests.
const (
	aheadAfter = 90 * time.Second
	// lowPriority is the niceness of the thread that builds the documents (setpriority(2)). With it
	// the thread gets a third of the processor time of a serving thread. A higher niceness would
	// delay a client that requests a document during the build.
	lowPriority = 5
)

// documentsHook is the name of the hook that builds the documents before clients request them.
// /readyz lists the hook.
const documentsHook = "orlop/documents"

// noDocuments is the response to the aggregator before the first request of a client: an OpenAPI v3
// root document without groups. The aggregator repeats its request every second.
const noDocuments = `{"paths":{}}`

// pollInterval is the interval at which await polls the aggregator.
const pollInterval = 50 * time.Millisecond

// attach serves the documents at the core server, from which the aggregator gets them.
func (d *documents) attach(core *genericapiserver.GenericAPIServer) {
	d.build = func() http.Handler {
		all := mux.NewPathRecorderMux("openapi")
		routes := routes.OpenAPI{Config: d.v2, V3Config: d.v3}
		routes.InstallV2(core.Handler.GoRestfulContainer, all)
		routes.InstallV3(core.Handler.GoRestfulContainer, all)
		return all
	}
	core.Handler.NonGoRestfulMux.Handle(openAPIV2, d)
	core.Handler.NonGoRestfulMux.Handle(openAPIV3, d)
	core.Handler.NonGoRestfulMux.HandlePrefix(openAPIV3+"/", d)
}

// ServeHTTP answers the aggregator and the requests that it forwards. The aggregator itself
// requests version 3, and version 2 only on behalf of clients.
func (d *documents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !d.requested.Load() {
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(noDocuments)) // the aggregator's buffer accepts every write
		return
	}
	d.make.Do(d.makeNow)
	d.served.ServeHTTP(w, r)
}

func (d *documents) makeNow() { d.served = d.build() }

// buildAhead builds the documents after the given delay, unless a client has requested them before.
func (d *documents) buildAhead(ctx context.Context, after time.Duration) {
	if backoff.Sleep(ctx, after) != nil {
		return
	}
	if d.requested.Load() {
		return
	}
	// The changed priority stays with the thread, so the goroutine keeps the thread locked, and the
	// thread ends with the goroutine.
	runtime.LockOSThread()
	if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), lowPriority); err != nil {
		klog.ErrorS(err, "Cannot lower the priority of the build of the OpenAPI documents")
	}
	began := time.Now()
	d.make.Do(d.makeNow)
	d.requested.Store(true)
	if err := d.await(ctx, d.aggregator); err == nil {
		klog.InfoS("The OpenAPI documents are built", "took", time.Since(began))
	}
}

// front wraps the aggregator, so that a client that requests a document waits until all documents
// are built.
func (d *documents) front(next http.Handler) http.Handler {
	d.aggregator = next
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, openAPIPrefix) && !d.complete.Load() && !ownRequest(r) {
			d.requested.Store(true)
			if err := d.await(r.Context(), next); err != nil {
				w.Header().Set("Retry-After", "1")
				http.Error(w, "the OpenAPI documents are not built yet: "+err.Error()+"; retry", http.StatusServiceUnavailable)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// ownRequest reports whether the server itself sent the request.
func ownRequest(r *http.Request) bool {
	who, ok := request.UserFrom(r.Context())
	return ok && who.GetName() == user.APIServerUser
}

// watchPolicies starts the build as soon as the cluster has a mutating admission policy.
func (d *documents) watchPolicies(shared informers.SharedInformerFactory) error {
	policies := shared.Admissionregistration().V1().MutatingAdmissionPolicies().Informer()
	_, err := policies.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { d.requested.Store(true) }})
	return err
}

// await polls the aggregator's list of documents until it contains the core group.
func (d *documents) await(ctx context.Context, aggregator http.Handler) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		question, err := http.NewRequestWithContext(ctx, http.MethodGet, openAPIV3, nil)
		if err != nil {
			return err
		}
		list := responsewriter.NewInMemoryResponseWriter()
		aggregator.ServeHTTP(list, question)
		if list.RespCode() == http.StatusOK && bytes.Contains(list.Data(), []byte(`"api/v1"`)) {
			d.complete.Store(true)
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return errors.New("the request timed out")
		}
	}
}
