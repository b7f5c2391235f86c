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
)

// The paths of OpenAPI documents, as upstream serves them.
const (
	openAPIPrefix = "/openapi/"
	openAPIV2     = "/openapi/v2"
	openAPIV3     = "/openapi/v3"
)

// documents are the OpenAPI documents of Kubernetes' own API groups. Upstream makes them before it
// serves the first request, which is a fifth of the server's start and some 30 MiB, though only
// tools for people read them (kubectl apply and explain). Here they are made when a client first
// asks for one, or some time after the start. Custom resources and aggregated APIs have theirs from
// upstream, which merges all.
//
// The server itself asks for the list of documents every five seconds, for mutating admission
// policies (upstream's patch.typeConverterManager). That counts only when there is a policy: see
// watchPolicies.
type documents struct {
	v2 *openapi.Config
	v3 *openapi.OpenAPIV3Config

	asked  atomic.Bool
	make   sync.Once
	build  func() http.Handler // makes the documents, and returns what serves them
	served http.Handler        // once they are made
	whole  atomic.Bool         // the aggregator knows of all of them

	aggregator http.Handler
}

// The documents are made ahead of the first client: a client that applies something waits for them,
// for half a minute where a processor is slow, and some give up. It is done when a start is over,
// and gives way to the server's requests.
const (
	aheadAfter = 90 * time.Second
	// lowPriority is the niceness of the thread that makes them (setpriority(2)): a third of the
	// share of one that serves. It is not lower, because a client that comes meanwhile waits for
	// it.
	lowPriority = 5
)

// documentsHook is the name of what makes the documents ahead of clients. /readyz shows it.
const documentsHook = "orlop/documents"

// none is what the aggregator learns until a client has asked: an OpenAPI v3 root document without
// groups. It asks again every second.
const none = `{"paths":{}}`

// lookAgain is between two looks at whether the aggregator has learned of the documents.
const lookAgain = 50 * time.Millisecond

// attach serves the documents at the core server, which the aggregator asks.
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

// ServeHTTP answers the aggregator and what it passes on. It asks for version 3 by itself, for
// version 2 on behalf of clients only.
func (d *documents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !d.asked.Load() {
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(none)) // the aggregator's buffer takes everything
		return
	}
	d.make.Do(d.made)
	d.served.ServeHTTP(w, r)
}

func (d *documents) made() { d.served = d.build() }

// ahead makes the documents when the time has come, unless a client has asked before.
func (d *documents) ahead(ctx context.Context, after time.Duration) {
	timer := time.NewTimer(after)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return
	}
	if d.asked.Load() {
		return
	}
	// The thread keeps its priority, so it ends with this goroutine, which never gives it back.
	runtime.LockOSThread()
	if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), lowPriority); err != nil {
		klog.ErrorS(err, "The OpenAPI documents are made at the usual priority")
	}
	began := time.Now()
	d.make.Do(d.made)
	d.asked.Store(true)
	if err := d.await(ctx, d.aggregator); err == nil {
		klog.InfoS("The OpenAPI documents are made", "took", time.Since(began))
	}
}

// front stands before the aggregator: a client who asks for a document waits until there are all.
func (d *documents) front(next http.Handler) http.Handler {
	d.aggregator = next
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, openAPIPrefix) && !d.whole.Load() && !own(r) {
			d.asked.Store(true)
			if err := d.await(r.Context(), next); err != nil {
				w.Header().Set("Retry-After", "1")
				http.Error(w, "the OpenAPI documents are not made yet: "+err.Error()+"; ask again", http.StatusServiceUnavailable)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// own tells whether the server asks itself.
func own(r *http.Request) bool {
	who, ok := request.UserFrom(r.Context())
	return ok && who.GetName() == user.APIServerUser
}

// watchPolicies has the documents made as soon as a mutating admission policy is known.
func (d *documents) watchPolicies(shared informers.SharedInformerFactory) error {
	policies := shared.Admissionregistration().V1().MutatingAdmissionPolicies().Informer()
	_, err := policies.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { d.asked.Store(true) }})
	return err
}

// await asks the aggregator for its list of documents until the core group is in it.
func (d *documents) await(ctx context.Context, aggregator http.Handler) error {
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	for {
		question, err := http.NewRequestWithContext(ctx, http.MethodGet, openAPIV3, nil)
		if err != nil {
			return err
		}
		list := responsewriter.NewInMemoryResponseWriter()
		aggregator.ServeHTTP(list, question)
		if list.RespCode() == http.StatusOK && bytes.Contains(list.Data(), []byte(`"api/v1"`)) {
			d.whole.Store(true)
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return errors.New("the request's time is over")
		}
	}
}
