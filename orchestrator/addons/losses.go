package addons

import (
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
)

// loss counts how many times in a row others have deleted an object.
type loss struct {
	count   int
	created time.Time // when the object was created again the last time
}

// freeLosses is the number of losses after which an object is still restored at once.
// restoreBackoff is the delay after each further loss. A loss of an object that has existed for
// lossPeriod begins a new row.
const (
	freeLosses = 5
	lossPeriod = time.Hour
)

var restoreBackoff = backoff.Backoff{Min: 30 * time.Second, Max: lossPeriod / 2}

// restoreDelay returns the reason if a missing object is not created now, otherwise an empty
// string. The first losses can be accidents. An object that disappears again and again is deleted
// on purpose: by the garbage collector, because the owner of the object does not exist, or by a
// controller that has finished its work with the object. Without the delay the add-on would create
// the object again for ever, unnoticed.
func (k *reconciler) restoreDelay(o Object, now time.Time) string {
	if !k.isLost(o) {
		delete(k.losses, o.key())
		return ""
	}
	l := k.losses[o.key()]
	if l.count < freeLosses || now.Sub(l.created) >= lossPeriod {
		return ""
	}
	left := l.created.Add(restoreBackoff.Delay(l.count - freeLosses + 1)).Sub(now)
	if left <= 0 {
		return ""
	}
	return fmt.Sprintf("others have deleted it %d times in a row; it is created again in %s; the annotation %s: %s leaves it deleted", l.count+1, left.Round(time.Second), onceAnnotation, once)
}

// isLost reports whether a missing object has existed with the same manifest.
func (k *reconciler) isLost(o Object) bool {
	m, before := k.applied[o.key()]
	return before && m.digest == o.Digest
}

// recordRestored counts the loss of a missing object that was created again. The loss counts only
// after the creation, so failed attempts to create the object do not raise the count.
func (k *reconciler) recordRestored(o Object, now time.Time) {
	if !k.isLost(o) {
		return
	}
	if k.losses == nil {
		k.losses = map[key]loss{}
	}
	l := k.losses[o.key()]
	if now.Sub(l.created) >= lossPeriod {
		l.count = 0
	}
	k.losses[o.key()] = loss{l.count + 1, now}
}
