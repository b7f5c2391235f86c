package kubelet

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/config"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
	"k8s.io/kubernetes/pkg/kubelet/util"
)

// relisted is how long after the first API server works the kubelet may take to hear from it which pods there are: it asks again at once, and
// after half a minute at most if that fails (client-go, the reflector's backoff).
const relisted = time.Minute

// incomplete gives the kubelet its source of pods, upstream's, and beside it one that says nothing until a while after ended is closed. Until all
// have said something the kubelet starts pods, and removes nothing of those that it does not know: what stands in for an API server
// (package standin) knows of some pods only, and the others' folders are theirs still.
func incomplete(ctx context.Context, parts *kubelet.Dependencies, node string, ended <-chan struct{}) {
	events := record.NewBroadcaster(record.WithContext(ctx))
	parts.Recorder = events.NewRecorder(legacyscheme.Scheme, v1.EventSource{Component: Name, Host: node})
	events.StartRecordingToSink(&corev1.EventSinkImpl{Interface: parts.EventClient.Events("")})
	parts.PodStartupLatencyTracker = util.NewPodStartupLatencyTracker()
	parts.PodConfig = config.NewPodConfig(parts.Recorder, parts.PodStartupLatencyTracker)

	own := informers.NewSharedInformerFactoryWithOptions(parts.KubeClient, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, node).String()
	}))
	there := own.Core().V1().Nodes().Informer().HasSynced
	own.Start(ctx.Done())
	config.NewSourceApiserver(klog.FromContext(ctx), parts.KubeClient, types.NodeName(node), there, parts.PodConfig.Channel(ctx, kubetypes.ApiserverSource))
	other := parts.PodConfig.Channel(ctx, "stand-in")
	go func() {
		select {
		case <-ended:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(relisted):
			nothing(other)
		case <-ctx.Done():
		}
	}()
}

// nothing sends that there is nothing. Upstream's type of what a source says has no name outside.
func nothing[T any](to chan<- T) {
	var none T
	to <- none
}
