package esp

import (
	"bytes"
	"debug/pe"
	"fmt"
	"io"
	"strings"
)

// KubernetesField is the field of os-release with the version of Kubernetes in a version of the
// system. The boot image contains the os-release, and the signed statement of the version covers
// the boot image.
const KubernetesField = "ORLOP_KUBERNETES_VERSION"

// maxOSRelease is the maximum number of bytes that KubernetesVersion reads of an os-release.
const maxOSRelease = 16 << 10

// KubernetesVersion returns the version of Kubernetes that belongs to a boot image. It returns an
// empty text for images of old versions, which have no KubernetesField.
func KubernetesVersion(uki io.ReaderAt) (string, error) {
	image, err := pe.NewFile(uki)
	if err != nil {
		return "", fmt.Errorf("boot image: cannot read: %w", err)
	}
	section := image.Section(".osrel")
	if section == nil {
		return "", nil
	}
	text := make([]byte, min(maxOSRelease, section.VirtualSize))
	if _, err := io.ReadFull(section.Open(), text); err != nil {
		return "", fmt.Errorf("boot image: cannot read its os-release: %w", err)
	}
	for line := range bytes.Lines(text) {
		if value, is := strings.CutPrefix(strings.TrimSpace(string(line)), KubernetesField+"="); is {
			return value, nil
		}
	}
	return "", nil
}
