"""The colours of figures and lessons: Okabe and Ito's, told apart with any kind of colour vision."""

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#666666"
