// Package lldp receives the announcements of the switches beside the machine (LLDP, IEEE 802.1AB),
// publishes them, derives labels of the Node from them, and optionally announces the machine.
//
//	frame.go              the decoder and the encoder of a frame: pure, with a fuzz test
//	table.go              the neighbors that have not expired: pure
//	labels.go             the labels of Machine.spec.node.lldpLabels: pure
//	store.go              the last labels, on STATE
//	socket_linux.go       a packet socket per link
//	controller_linux.go   a goroutine per link, and the loop that decides about the labels
//
// A frame has no authentication. Each host that a switch does not separate from the machine can
// send any frame, so nothing but labels of the machine's own Node follows from a frame. A bridge
// that conforms to IEEE 802.1D forwards no frame to the group addresses of LLDP.
//
// docs/decisions/0098-lldp.md gives the reasons and the bounds.
package lldp
